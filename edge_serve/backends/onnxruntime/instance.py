"""One instance of an ONNX model: joins a batch along its first axis, runs it, and hands out views of the outputs.

Texts: triton-inference-server/onnxruntime_backend src/onnxruntime.cc, backend src/backend_output_responder.cc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, Reply, Timing
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.config.model.complete import FoundTensor
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages import ragged
from edge_serve.messages.tensors import (
    BY_CONFIG_NAME,
    Array,
    DataType,
    InferTensor,
    Shape,
    from_array,
    join,
    split,
    to_array,
)

_BYTES = DataType.BYTES


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """The part of a run that is the same for every batch.

    Attributes:
        batches: whether there is a batch dimension.
        scalars: inputs of rank 0; requests give them as [1].
        flattened: inputs with `allow_ragged_batch`.
        scalar_outputs: outputs of rank 0, and the shape that the configuration gives them.
        states: outputs that carry a sequence's state; they are always wanted.
        through_values: some tensor is BF16, which NumPy does not know.
    """

    batches: bool
    outputs: Mapping[str, DataType]
    scalars: frozenset[str]
    scalar_outputs: Mapping[str, Shape]
    flattened: frozenset[str]
    batch_inputs: Sequence[ragged.BatchInput]
    batch_outputs: Mapping[str, ragged.BatchOutput]
    states: Sequence[str]
    through_values: bool


def make_plan(config: Mapping[str, Any], inputs: Iterable[FoundTensor], outputs: Iterable[FoundTensor]) -> BindingPlan:
    """The plan for a checked configuration and what the model's file says."""
    inputs, outputs = list(inputs), list(outputs)
    dims = {entry["name"]: tuple(int(dim) for dim in entry["dims"]) for entry in config.get("output", ())}
    return BindingPlan(
        batches=config.get("max_batch_size", 0) > 0,
        outputs={tensor.name: BY_CONFIG_NAME[tensor.data_type] for tensor in outputs if tensor.data_type},
        scalars=frozenset(tensor.name for tensor in inputs if not tensor.dims),
        scalar_outputs={tensor.name: dims.get(tensor.name, ()) for tensor in outputs if not tensor.dims},
        flattened=frozenset(entry["name"] for entry in config.get("input", ()) if entry.get("allow_ragged_batch")),
        batch_inputs=ragged.batch_inputs(config),
        batch_outputs={name: output for output in ragged.batch_outputs(config) for name in output.target_names},
        states=[state["output_name"] for state in (config.get("sequence_batching") or {}).get("state", ())],
        through_values=any(tensor.data_type == "TYPE_BF16" for tensor in [*inputs, *outputs]),
    )


class SharedSession:
    """The session that the instances of a model on one device share: a context that gives the session for one run.

    Args:
        alone: with every thread there is.
    """

    def __init__(self, alone: sessions.Session) -> None:
        self._alone = alone
        self._together: sessions.Session | None = None
        self._running = 0
        self._lock = threading.Lock()

    def divide(self, together: sessions.Session) -> None:
        """Use another session for runs beside others, which has this instance's share of the threads.

        Two runs on one pool of threads take longer than two on threads of their own (docs/onnxruntime.md). Without the
        call there is only one instance, or the threads are set by the configuration.
        """
        self._together = together

    def __enter__(self) -> sessions.Session:
        with self._lock:
            self._running += 1
            return self._together if self._running > 1 and self._together is not None else self._alone

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1


class OnnxInstance:
    """One executor. Instances of a model on one device share its sessions, which run in several threads at once."""

    def __init__(self, session: SharedSession, plan: BindingPlan, run_options: sessions.RunOptions | None) -> None:
        self._session = session
        self._plan = plan
        self._run_options = run_options

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """One reply per request; a failing run fails them all."""
        if len(batch) == 1:
            return [self._execute_one(batch[0], timing)]
        if not self._plan.batches:
            return [self._execute_one(request, timing) for request in batch]
        return self._execute_joined(batch, timing)

    def _execute_one(self, request: BackendRequest, timing: Timing) -> Reply:
        plan = self._plan
        feed: dict[str, Any] = {}
        for tensor in request.inputs:
            feed[tensor.name] = _array(tensor, tensor.name in plan.scalars)
        if plan.flattened or plan.batch_inputs:
            for name in plan.flattened & feed.keys():
                feed[name] = feed[name].reshape(-1)
            self._add_batch_inputs(feed, [request])
        timing.input_end_ns = time.monotonic_ns()
        names = self._wanted([request])
        arrays = self._run(names, feed)
        timing.output_start_ns = time.monotonic_ns()
        rows = request.inputs[0].shape[0] if plan.batches and request.inputs and request.inputs[0].shape else 0
        outputs = []
        for name, array in zip(names, arrays, strict=True):
            if name in plan.batch_outputs:
                (array,) = self._scatter(name, array, [request])
            elif rows and array.shape[:1] != (rows,):
                raise _wrong_rows(name, array, rows)
            outputs.append(self._tensor(name, array))
        return Reply(outputs)

    def _execute_joined(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        plan = self._plan
        feed: dict[str, Any] = {}
        for index, first in enumerate(batch[0].inputs):
            name = first.name
            parts = [_array(_input(request, index, name), False) for request in batch]
            try:
                feed[name] = ragged.flatten(parts) if name in plan.flattened else join(parts)
            except ValueError as error:
                shapes = ", ".join(str(list(part.shape)) for part in parts)
                raise Internal(f"input '{name}' cannot be joined to one batch: shapes are {shapes}") from error
        self._add_batch_inputs(feed, batch)
        timing.input_end_ns = time.monotonic_ns()
        names = self._wanted(batch)
        arrays = self._run(names, feed)
        timing.output_start_ns = time.monotonic_ns()
        rows = [request.inputs[0].shape[0] for request in batch]
        replies = [Reply() for _ in batch]
        for name, array in zip(names, arrays, strict=True):
            parts = self._scatter(name, array, batch) if name in plan.batch_outputs else _split(name, array, rows)
            for request, reply, part in zip(batch, replies, parts, strict=True):
                if name in request.requested_outputs or name in plan.states:
                    reply.outputs.append(self._tensor(name, part))
        return replies

    def _wanted(self, batch: Sequence[BackendRequest]) -> list[str]:
        """The model's outputs that some request of the batch wants, in the model's order."""
        wanted = {name for request in batch for name in request.requested_outputs}.union(self._plan.states)
        return [name for name in self._plan.outputs if name in wanted]

    def _run(self, names: list[str], feed: dict[str, Any]) -> Sequence[Array]:
        if not names:
            return []
        run = sessions.run_values if self._plan.through_values else sessions.run
        with self._session as session:
            return run(session, names, feed, self._run_options)

    def _add_batch_inputs(self, feed: dict[str, Any], batch: Sequence[BackendRequest]) -> None:
        for made in self._plan.batch_inputs:
            shapes = [_source_shape(request, made.source_input) for request in batch]
            for name in made.target_names:
                feed[name] = ragged.make(made.kind, made.datatype, shapes)

    def _scatter(self, name: str, array: Array, batch: Sequence[BackendRequest]) -> list[Array]:
        output = self._plan.batch_outputs[name]
        return ragged.scatter(array, output.dims, [_source_shape(request, output.source_input) for request in batch])

    def _tensor(self, name: str, array: Array) -> InferTensor:
        datatype = self._plan.outputs[name]
        if array.ndim == 0:
            array = array.reshape(self._plan.scalar_outputs.get(name, ()))
        if datatype is _BYTES or not array.size or not array.flags.c_contiguous:
            return InferTensor(name, datatype, array.shape, from_array(array, datatype))
        return InferTensor(name, datatype, array.shape, array.data.cast("B"))

    def is_ready(self) -> bool:
        """A loaded session always is."""
        return True

    def close(self) -> None:
        """Release the session."""
        del self._session


def _array(tensor: InferTensor, scalar: bool) -> Array:
    """The values of an input, a view where they lie aligned, with strings as the library wants them."""
    datatype, shape = tensor.datatype, () if scalar else tensor.shape
    if datatype is _BYTES:
        return _text_array(to_array(tensor.data, _BYTES, shape))
    array: Array = np.ndarray(shape, datatype.numpy, tensor.data)
    return array if array.flags.aligned else array.copy()


def _text_array(array: Array) -> Array:
    """Return the elements (bytes) as `str`, which ONNX Runtime takes; if one is not UTF-8, an array of fixed width.

    ONNX's strings end at a zero byte, as they do in Triton.
    """
    elements = array.ravel().tolist()
    try:
        text = np.empty(len(elements), dtype=object)
        text[:] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        text = np.array(elements, dtype=np.bytes_)
    return text.reshape(array.shape)


def _input(request: BackendRequest, index: int, name: str) -> InferTensor:
    """An input by name; requests of one batch nearly always have theirs in the same order."""
    if index < len(request.inputs) and request.inputs[index].name == name:
        return request.inputs[index]
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise InvalidArgument(f"input '{name}' is missing in a request of the batch")


def _source_shape(request: BackendRequest, name: str) -> Shape:
    return _input(request, 0, name).shape


def _split(name: str, array: Array, rows: Sequence[int]) -> list[Array]:
    total = sum(rows)
    if array.ndim == 0 or array.shape[0] != total:
        raise _wrong_rows(name, array, total)
    return split(array, rows)


def _wrong_rows(name: str, array: Array, rows: int) -> Internal:
    got = array.shape[0] if array.ndim else 0
    return Internal(
        f"failed to split the output tensor '{name}' in responses: expected batch size of atleast {rows} in model "
        f"output, got {got}"
    )
