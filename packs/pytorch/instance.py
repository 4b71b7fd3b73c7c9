"""One instance of a model: joins a batch along its first axis, runs it, and takes the outputs apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from edge_serve.backends.base import BackendRequest, Reply, Timing
from edge_serve.backends.binding_plan import BindingPlan, input_of, not_joined, wrong_rows
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.messages import ragged
from edge_serve.messages.tensors import Array
from edge_serve.tensors import DataType, Tensor, from_array, join, split, to_array

from .cores import Cores
from .gpu import empty_cache, failure, own_stream, work_on
from .settings import TorchSettings
from .signature import TensorPlaces

_BYTES, _BF16 = DataType.BYTES, DataType.BF16
_TORCH_TYPES = {
    torch.bool: DataType.BOOL, torch.uint8: DataType.UINT8, torch.int8: DataType.INT8, torch.int16: DataType.INT16,
    torch.int32: DataType.INT32, torch.int64: DataType.INT64, torch.float16: DataType.FP16,
    torch.bfloat16: DataType.BF16, torch.float32: DataType.FP32, torch.float64: DataType.FP64,
    torch.uint16: DataType.UINT16, torch.uint32: DataType.UINT32, torch.uint64: DataType.UINT64,
}  # fmt: skip


class TorchModel(Protocol):
    """A loaded model.

    Attributes:
        words: before the text of an error in a run.
        signature: the places of its tensors.
    """

    words: str
    signature: TensorPlaces

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the results in order: tensors, and lists of strings."""


class PyTorchInstance:
    """One executor.

    Args:
        device: where inputs go; None = they stay on the host, and the model moves them.
        cores: divides the cores among the runs of this process.

    Attributes:
        writes_inputs: operators in place may (`x += 1`).
    """

    writes_inputs = True

    def __init__(
        self, model: TorchModel, plan: BindingPlan, device: torch.device | None, settings: TorchSettings, cores: Cores
    ) -> None:
        self._model = model
        self._plan = plan
        self._device = device
        self._settings = settings
        self._cores = cores
        self._stream = own_stream(device)
        self._places = model.signature.inputs
        self._results: Mapping[str, int] = model.signature.outputs
        self._last_result = max(model.signature.outputs.values())
        cores.add()
        #: the thread that ran last, and with how many threads of torch
        self._threads = (0, 0)

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """One reply per request; a failing run fails them all."""
        if self._plan.batches or len(batch) == 1:
            return self._execute_joined(batch, timing)
        return [self._execute_joined([request], timing)[0] for request in batch]

    def _execute_joined(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        try:
            with work_on(self._stream):
                arguments = self._arguments(batch)
                timing.input_end_ns = time.monotonic_ns()
                results = self._run(arguments)
                replies = self._replies(batch, results, timing)
            if self._settings.cache_cleaning:
                empty_cache(self._device)
        except RuntimeError as error:  # of torch: the first call after a device is lost is often the copy of an input
            raise failure(self._model.words, error) from error
        return replies

    # ---- inputs --------------------------------------------------------------------------------------------------

    def _arguments(self, batch: Sequence[BackendRequest]) -> list[Any]:
        arguments: list[Any] = [None] * self._model.signature.count
        for index, first in enumerate(batch[0].inputs):
            tensors = [input_of(request, index, first.name) for request in batch]
            arguments[self._place(first.name)] = self._argument(tensors)
        for name, datatype, array in self._plan.made_inputs(batch):
            arguments[self._place(name)] = self._to_device(_torch_of([array], datatype))
        return arguments

    def _place(self, name: str) -> int:
        place = self._places.get(name)
        if place is None:
            raise InvalidArgument(f"unexpected input '{name}', the model's are {', '.join(self._places)}")
        return place

    def _argument(self, tensors: Sequence[Tensor]) -> Any:
        first = tensors[0]
        if first.datatype is _BYTES:
            return _texts_of(tensors)
        parts = [_array_of(tensor) for tensor in tensors]
        if first.name in self._plan.flattened:
            return self._to_device(_torch_of([ragged.flatten(parts)], first.datatype))
        try:
            return self._to_device(_torch_of(parts, first.datatype))
        except ValueError as error:
            raise not_joined(first.name, [part.shape for part in parts]) from error

    def _to_device(self, value: torch.Tensor) -> torch.Tensor:
        return value if self._stream is None else value.to(self._device, non_blocking=True)

    # ---- run -----------------------------------------------------------------------------------------------------

    def _run(self, arguments: list[Any]) -> Sequence[Any]:
        chosen = self._settings.intra_op_threads
        if chosen or self._stream is not None:  # the stream is of this thread
            return self._run_with(chosen or self._cores.count, arguments)
        return self._cores.run(lambda threads: self._run_with(threads, arguments), time.monotonic_ns())

    def _run_with(self, threads: int, arguments: list[Any]) -> Sequence[Any]:
        try:
            self._use_threads(threads)
            with torch.inference_mode() if self._settings.inference_mode else torch.no_grad():
                return self._model.run(arguments)
        except EdgeServeError:
            raise
        except Exception as error:
            raise failure(self._model.words, error) from error

    def _use_threads(self, count: int) -> None:
        """Let runs of this thread use so many threads, which torch keeps for each thread."""
        now = (threading.get_ident(), count)
        if self._threads != now:
            torch.set_num_threads(count)
            self._threads = now

    # ---- outputs -------------------------------------------------------------------------------------------------

    def _replies(self, batch: Sequence[BackendRequest], results: Sequence[Any], timing: Timing) -> list[Reply]:
        if self._last_result >= len(results):
            raise self._no_result(len(results))
        names = self._plan.wanted(batch)
        values = [self._value(name, results[self._results[name]]) for name in names]
        timing.output_start_ns = time.monotonic_ns()
        replies = [Reply() for _ in batch]
        rows = [request.inputs[0].shape[0] for request in batch] if self._plan.batches else []
        for name, value in zip(names, values, strict=True):
            parts = self._parts(name, value, batch, rows)
            for request, reply, part in zip(batch, replies, parts, strict=True):
                if name in request.requested_outputs or name in self._plan.states:
                    reply.outputs.append(part)
        return replies

    def _no_result(self, count: int) -> EdgeServeError:
        name = next(name for name, place in self._results.items() if place >= count)
        return InvalidArgument(
            f"The output {name} in the model configuration refers to an output index which doesn't exist. This model "
            f"has {count} outputs"
        )

    def _value(self, name: str, result: Any) -> Array | list[str]:
        """Return an output on the host, which waits for the device."""
        expected = self._plan.outputs[name]
        if not isinstance(result, torch.Tensor):
            if expected is not _BYTES:
                raise _wrong_type(name, expected, "TYPE_STRING")
            return list(result)
        found = datatype_of(result)
        if found is not expected:
            raise _wrong_type(name, expected, found.config_name if found else f"{result.dtype}")
        if not result.dim() and name not in self._plan.batch_outputs:
            raise InvalidArgument(
                f"output '{name}' is a scalar which is not supported. Give it a dimension in the model, as with "
                "tensor.reshape(1)"
            )
        try:
            return _numpy_of(result)
        except Exception as error:
            raise failure(self._model.words, error) from error

    def _parts(
        self, name: str, value: Array | list[str], batch: Sequence[BackendRequest], rows: Sequence[int]
    ) -> list[Tensor]:
        if isinstance(value, list):
            return [_text_output(name, part) for part in _split_texts(name, value, rows)]
        datatype = self._plan.outputs[name]
        if name in self._plan.batch_outputs:
            parts = self._plan.scatter(name, value, batch)
        elif not rows:
            parts = [value]
        elif value.shape[0] != sum(rows):
            raise wrong_rows(name, value.shape, sum(rows))
        else:
            parts = split(value, rows)
        return [_output_of(name, part, datatype) for part in parts]

    def is_ready(self) -> bool:
        """A loaded model always is."""
        return True

    def close(self) -> None:
        """Release the model."""
        self._cores.remove()
        del self._model


def _split_texts(name: str, texts: list[str], rows: Sequence[int]) -> list[list[str]]:
    if not rows:
        return [texts]
    if len(texts) != sum(rows):
        raise wrong_rows(name, (len(texts),), sum(rows))
    ends = [sum(rows[: index + 1]) for index in range(len(rows))]
    return [texts[end - count : end] for end, count in zip(ends, rows, strict=True)]


def _wrong_type(name: str, expected: DataType, found: str) -> EdgeServeError:
    return InvalidArgument(
        f"configuration expects datatype TYPE_{expected.name} for output '{name}', model provides {found}"
    )


# ---- tensors of requests as those of torch, and back, without a copy where that is possible ----


def datatype_of(value: torch.Tensor) -> DataType | None:
    """Return the type of a tensor of torch; None for one that has no place in a reply."""
    return _TORCH_TYPES.get(value.dtype)


def _array_of(tensor: Tensor) -> Array:
    """Return the numbers of an input: a view."""
    array: Array = np.ndarray(tensor.shape, tensor.datatype.numpy, tensor.data)
    return array


def _torch_of(parts: Sequence[Array], datatype: DataType) -> torch.Tensor:
    """Return arrays, joined along the first axis, as a tensor; a single one without a copy.

    The model may write into its inputs, so what must not be written is copied: an input in the memory of another model
    or of a client.
    """
    array = join(parts)
    if not (array.flags.aligned and array.flags.writeable):
        array = array.copy()
    if datatype is _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _texts_of(tensors: Sequence[Tensor]) -> list[bytes]:
    """Return the elements of string inputs, one request after the other: torch has lists of strings, no tensors."""
    return [text for tensor in tensors for text in to_array(tensor.data, _BYTES, tensor.shape).ravel().tolist()]


def _numpy_of(value: torch.Tensor) -> Array:
    """Return an output in the host's memory; BF16 as its bits."""
    value = value.detach().cpu().resolve_neg().contiguous()
    array: Array = (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy()
    return array


def _output_of(name: str, array: Array, datatype: DataType) -> Tensor:
    """Return an output of a reply: a view."""
    if datatype is _BF16:
        array = array.view(np.uint16)
    if not array.size or not array.flags.c_contiguous:
        return Tensor(name, datatype, array.shape, from_array(array, datatype))
    return Tensor(name, datatype, array.shape, array.data.cast("B"))


def _text_output(name: str, texts: Sequence[str]) -> Tensor:
    """Return an output of strings."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return Tensor(name, _BYTES, array.shape, from_array(array, _BYTES))
