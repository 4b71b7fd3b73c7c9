"""A member of an ensemble: makes its requests from ensemble tensors, and reads sequence IDs from its responses.

The shapes and the batch size of a step's request, and the result of its validation, are kept for later requests with
equal shapes, because the server calls members again and again with the same shapes.

Shared memory of clients: the member that makes an output writes it there, and later steps read it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from edge_serve.aio.memo import Memo
from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, Lease, Parameter
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Handle, InferTensor, Shape, Shared, is_unseen
from edge_serve.protocol.inference.validate import validate
from edge_serve.records import slotted
from edge_serve.scheduling.ensemble import EnsemblePlan, EnsembleStep

#: entries for each step; a client that sends more shapes changes them all the time
_REMEMBERED = 64


@slotted
class StepOutputs:
    """The outputs of one response of a step, or the inputs that the client gave.

    Attributes:
        tensors: by ensemble tensor.
        rows: of the request that it answers; 0 if its model has no batch dimension.
        mark: correlation ID and flags for the requests of steps that read it.
        leases: one for each step that has yet to read it, and one for the answer; None = no memory to release.
    """

    tensors: Mapping[str, InferTensor]
    rows: int
    mark: tuple[int | str, int]
    leases: list[Lease | None] = field(default_factory=list)


class Member:
    """The version that a step calls, with the data that the step's requests need.

    Args:
        writers: ensemble tensor -> the step that writes it.

    Attributes:
        inputs: (name, ensemble tensor, its writer; None = the client), in the order of the configuration.
    """

    __slots__ = ("_known", "_lookalikes", "batching", "inputs", "signature")

    def __init__(self, step: EnsembleStep, signature: Signature, writers: Mapping[str, int]) -> None:
        self.signature = signature
        self.batching = signature.max_batch_size > 0
        self.inputs = [(name, outer, writers.get(outer)) for name, outer in step.inputs.items()]
        #: shapes, types and sizes of the inputs -> their shapes for this model, and the batch size of the request
        self._known: Memo[tuple[object, ...], tuple[list[Shape], int]] = Memo(_REMEMBERED)
        #: validation depends on shapes alone: the inputs are numbers, and there is no correlation ID to check
        self._lookalikes = signature.correlation_id_type is None and all(
            spec.datatype.size for spec in signature.inputs.values()
        )

    def fill(self, request: InferRequest, sources: Mapping[int | None, StepOutputs]) -> None:
        """Set the inputs of a request, and validate it like a request of a client.

        Args:
            sources: the tensors that are there, by writer.

        Raises:
            InvalidArgument: with Triton's text.
        """
        found: list[tuple[str, InferTensor, int]] = []
        looks: list[object] = []
        for name, outer, writer in self.inputs:
            source = sources[writer]
            tensor = source.tensors.get(outer)
            if tensor is None:
                looks.append(None)
            else:
                found.append((name, tensor, source.rows))
                looks += (tensor.shape, tensor.datatype._value_, len(tensor.data), source.rows)
        key = tuple(looks)
        known = self._known.get(key)
        if known is None:
            self._work_out(request, key, found)
            return
        shapes, request.rows = known
        request.validated = self.signature
        request.inputs = [
            InferTensor(name, tensor.datatype, shape, tensor.data)
            if type(tensor) is InferTensor
            else Handle.renamed(tensor, name, shape)
            for (name, tensor, _), shape in zip(found, shapes, strict=True)
        ]

    def _work_out(
        self, request: InferRequest, key: tuple[object, ...], found: list[tuple[str, InferTensor, int]]
    ) -> None:
        request.inputs = [_member_input(name, tensor, self.signature, rows) for name, tensor, rows in found]
        shapes = [tensor.shape for tensor in request.inputs]
        validate(request, self.signature)
        if self._lookalikes:
            self._known.add(key, (shapes, request.rows))


def _member_input(name: str, tensor: InferTensor, signature: Signature, rows: int) -> InferTensor:
    """Return an ensemble tensor as the input `name` of a member; `rows` as in `fitted`."""
    shape, spec = tensor.shape, signature.inputs.get(name)
    if spec is not None:
        shape = fitted(shape, spec.dims, signature.max_batch_size > 0, rows)
    return Handle.renamed(tensor, name, shape)


def fitted(shape: Shape, dims: Shape, batching: bool, rows: int) -> Shape:
    """Convert `shape` for a model configured with `dims`, if only one of writer and reader has a batch dimension.

    Args:
        batching: the reader has one.
        rows: the writer's batch size; 0 = it has no batch dimension.
    """
    if batching == (rows > 0):
        return shape
    if batching:
        return (1, *shape) if _follows(shape, dims) else shape
    return shape[1:] if rows == 1 and not _follows(shape, dims) else shape


def _follows(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(
        size == dim or -1 in (size, dim) for size, dim in zip(shape, dims, strict=True)
    )


def mark_parameters(correlation_id: int | str, flags: int) -> dict[str, Parameter]:
    """Return the parameters with which Triton says which sequence an answer belongs to."""
    return {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }


def override(correlation_id: int | str, parameters: dict[str, Parameter]) -> tuple[int | str, int] | None:
    """Return the correlation ID and flags that a member set in its response parameters; None when it set none of them.

    Raises:
        InvalidArgument: one of them has the wrong type.
    """
    found = False
    flags = 0
    if "sequence_id" in parameters:
        value = parameters["sequence_id"]
        if isinstance(value, (bool, float)):
            raise InvalidArgument(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        correlation_id, found = value, True
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        if name in parameters:
            if not isinstance(parameters[name], bool):
                raise InvalidArgument(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
            flags |= flag if parameters[name] else 0
            found = True
    return (correlation_id, flags) if found else None


def refusal(request: InferRequest, plan: EnsemblePlan, signature: Signature) -> InvalidArgument | None:
    """Return the reason why a request with tensors in shared memory cannot be run; None = it can."""
    places = {output.name: output.place for output in request.outputs}
    given = {tensor.name: tensor for tensor in request.inputs}
    read = {tensor for step in plan.steps for tensor in step.inputs.values()} if signature.decoupled else set()
    for name in places or signature.outputs:
        if name not in plan.writers and (places.get(name) is not None or isinstance(given.get(name), Shared)):
            return InvalidArgument(
                f"ensemble '{signature.model_name}' hands its input '{name}' on as an output, which shared memory "
                "cannot be used for; send it as data, and take the output from the reply"
            )
        if places.get(name) is not None and name in read:  # the next response would overwrite it
            return InvalidArgument(
                f"steps of the decoupled ensemble '{signature.model_name}' read its output '{name}', which cannot be "
                "in shared memory; take it from the reply"
            )
    return None


def share(request: InferRequest, top: InferRequest, step: EnsembleStep) -> None:
    """Let a member write the outputs that the client wants in its memory, and read inputs that were written there."""
    places = {output.name: output.place for output in top.outputs if output.place is not None}
    request.outputs = [replace(one, place=places.get(step.outputs[one.name])) for one in request.outputs]
    request.inputs = [_there(tensor, step, places) for tensor in request.inputs]
    request.shared = any(one.place is not None for one in request.outputs) or any(
        isinstance(tensor, Shared) for tensor in request.inputs
    )


def _there(tensor: InferTensor, step: EnsembleStep, places: Mapping[str, Place]) -> InferTensor:
    if not is_unseen(tensor.data) or isinstance(tensor, Shared):
        return tensor
    place = places[step.inputs[tensor.name]]
    return Shared(tensor.name, tensor.datatype, tensor.shape, tensor.data, -1, place.region, place.offset)
