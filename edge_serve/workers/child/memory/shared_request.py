"""Reads and writes the tensors of one request that lie in clients' shared memory.

The front end does not read them. The content of an input is checked here. An output is written to its region, and the
reply has only its name, type, shape and size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from edge_serve.backends.base import Reply
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, Shape, element_count, zero_data
from edge_serve.protocol.inference.validate import check_strings
from edge_serve.workers.child.memory.arena_imports import ArenaImports, ClientRegion
from edge_serve.workers.child.memory.cuda_client_region import CudaClientRegion
from edge_serve.workers.wire.layout import OFFSET_MASK

Send = Callable[["Reply | None", bool], None]
AnyRegion = ClientRegion | CudaClientRegion


class SharedRequest:
    """One request in the worker.

    Args:
        value: `shared` of the request's extra JSON.
        copies: inputs are the model's own, to write to.
        on_device: inputs in the memory of a GPU stay there.

    Attributes:
        error: why it cannot be executed.
    """

    __slots__ = ("_copies", "_id", "_imports", "_model", "_on_device", "_outputs", "error")

    def __init__(
        self, imports: ArenaImports, request_id: str, value: dict[str, Any], copies: bool, on_device: bool = False
    ) -> None:
        self._imports = imports
        self._id = request_id
        self._copies = copies
        self._on_device = on_device
        self._model: str = value["model"]
        self._outputs: dict[str, tuple[int, int, str]] = {one[0]: (one[1], one[2], one[3]) for one in value["outputs"]}
        self.error: EdgeServeError | None = None

    @classmethod
    def of_missing(cls, imports: ArenaImports) -> SharedRequest:
        """Return a request without tensors in clients' memory, to refuse it by its `error`."""
        return cls(imports, "", {"model": "", "outputs": []}, copies=False)

    def region(self, place: int) -> AnyRegion | None:
        """Return the client's memory that an input is in; None = it is in an arena."""
        return self._imports.region(place)

    def input(
        self, region: AnyRegion, name: str, datatype: DataType, shape: Shape, place: int, size: int
    ) -> InferTensor:
        """Return an input. If it cannot be read, set `error`, and return zeros where the batch needs its rows."""
        try:
            data = self._read(region, name, datatype, shape, place & OFFSET_MASK, size)
        except EdgeServeError as error:
            self.error = self.error or error
            data = zero_data(datatype, shape)
        except (OSError, MemoryError) as error:
            self.error = self.error or Internal(
                f"input '{name}' in shared memory cannot be read: {str(error) or 'no memory'}"
            )
            data = b""
        return InferTensor(name, datatype, shape, data)

    def _read(self, region: AnyRegion, name: str, datatype: DataType, shape: Shape, offset: int, size: int) -> Buffer:
        aligned = datatype.size and offset % datatype.size == 0  # a kernel that reads other data ends the context
        if aligned and self._on_device and isinstance(region, CudaClientRegion):
            return cast(Buffer, region.on_device(offset, size))
        if datatype.size:
            return region.read(offset, size, copy=self._copies or offset % datatype.size != 0)
        data = region.read(offset, size, copy=True)  # the lengths must not change once they are checked
        check_strings(data, element_count(shape), name, self._model, self._id)
        return data

    def send(self, send: Send, reply: Reply | None, final: bool) -> None:
        """Write one of the replies of a decoupled model, then pass it to `send`."""
        send(None if reply is None else self.answer(reply, None), final)

    def answer(self, reply: Reply, names: Sequence[str] | None) -> Reply:
        """Write the outputs that the client wants in its memory there, and return the reply without them.

        Args:
            names: the outputs that were asked for; None = all.
        """
        if self.error is not None:
            return Reply(error=self.error)
        if reply.error is not None or reply.rescheduled or not self._outputs:
            return reply
        outputs = [tensor for tensor in reply.outputs if names is None or tensor.name in names]
        stored: list[list[Any]] = []
        try:
            for position, tensor in enumerate(outputs):
                if tensor.name in self._outputs:
                    self._write(tensor)
                    described = [position, tensor.name, tensor.datatype.value, tensor.shape, len(tensor.data)]
                    stored.append(described)
        except EdgeServeError as error:
            return Reply(error=error)
        except Exception as fault:  # a backend returned what is no tensor
            return Reply(error=Internal(f"an output cannot be put into shared memory: {type(fault).__name__}: {fault}"))
        reply.outputs = [tensor for tensor in outputs if tensor.name not in self._outputs]
        reply.stored = stored
        return reply

    def _write(self, tensor: InferTensor) -> None:
        place, room, label = self._outputs[tensor.name]
        size = len(tensor.data)
        if tensor.datatype.size and math.prod(tensor.shape) * tensor.datatype.size != size:
            shape = list(tensor.shape)
            raise Internal(f"output '{tensor.name}' has {size} bytes, which is not {tensor.datatype.name} {shape}")
        if size > room:
            raise Internal(
                f"shared memory size specified with the request for output '{label}' ({room} bytes) should be at least "
                f"{size} bytes to hold the results"
            )
        region = self._imports.region(place)
        if region is None:
            raise InvalidArgument(f"the shared memory for output '{label}' did not arrive")
        if size:
            region.write(place & OFFSET_MASK, tensor.data)
