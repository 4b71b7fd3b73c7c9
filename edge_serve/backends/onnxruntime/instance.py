"""One instance of an ONNX model: joins a batch along its first axis, runs it, and hands out views of the outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, DeviceLost, Reply, Timing
from edge_serve.backends.binding_plan import BindingPlan, input_of, not_joined, wrong_rows
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.messages import ragged
from edge_serve.messages.tensors import Array, DataType, InferTensor, from_array, join, split, to_array

_BYTES = DataType.BYTES
#: bytes that strings of fixed width may take, though they had far fewer in the request
_MOST_PADDED = 16 * 1024 * 1024


class SharedSession:
    """The session that the instances of a model on one device share: a context that gives the session for one run.

    Attributes:
        alone: with every thread there is.
    """

    def __init__(self, alone: sessions.Session) -> None:
        self.alone = alone
        self._together: sessions.Session | None = None
        self._running = 0
        self._lock = threading.Lock()

    def divide(self, together: sessions.Session) -> None:
        """Use another session for runs beside others, which has this instance's share of the threads.

        Two runs on one pool of threads take longer than two on threads of their own (docs/onnxruntime.md). Without the
        call there is only one instance, or the threads are set by the configuration.
        """
        self._together = together

    @property
    def only(self) -> sessions.Session | None:
        """The session of every run; None if runs beside others have another one: then enter the context."""
        return self.alone if self._together is None else None

    def __enter__(self) -> sessions.Session:
        with self._lock:
            self._running += 1
            return self._together if self._running > 1 and self._together is not None else self.alone

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1


class OnnxInstance:
    """One executor. Instances of a model on one device share its sessions, which run in several threads at once."""

    def __init__(self, session: SharedSession, plan: BindingPlan, run_options: sessions.RunOptions | None) -> None:
        self._session = session
        self._plan = plan
        self._run_options = run_options
        #: the outputs that the latest request listed, and the names of them that a run gets
        self._requested: Sequence[str] | None = None
        self._names: list[str] = []

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """One reply per request; a failing run fails them all, unless a request has text that is not UTF-8."""
        if len(batch) == 1:
            return [self._execute_one(batch[0], timing)]
        if not self._plan.batches:
            return [self._execute_one(request, timing) for request in batch]
        try:
            feed = self._join_inputs(batch)
        except UnicodeDecodeError:
            return [self._answer_alone(request, timing) for request in batch]
        return self._execute_joined(batch, feed, timing)

    def _answer_alone(self, request: BackendRequest, timing: Timing) -> Reply:
        """Answer a request without others, whose run its text cannot fail."""
        try:
            return self._execute_one(request, timing)
        except DeviceLost:
            raise
        except EdgeServeError as error:
            return Reply(error=error)

    def _execute_one(self, request: BackendRequest, timing: Timing) -> Reply:
        plan, inputs = self._plan, request.inputs
        feed: dict[str, Any] = {tensor.name: _array(tensor, tensor.name in plan.scalars, True) for tensor in inputs}
        if plan.flattened or plan.batch_inputs:
            for name in plan.flattened & feed.keys():
                feed[name] = feed[name].reshape(-1)
            feed.update({name: array for name, _, array in plan.made_inputs([request])})
        timing.input_end_ns = time.monotonic_ns()
        if request.requested_outputs is not self._requested:  # nearly always the same object
            self._requested, self._names = request.requested_outputs, plan.wanted([request])
        names = self._names
        arrays = self._run(names, feed)
        timing.output_start_ns = time.monotonic_ns()
        rows = inputs[0].shape[0] if plan.batches and inputs and inputs[0].shape else 0
        outputs = []
        for name, array in zip(names, arrays, strict=True):
            if name in plan.batch_outputs:
                (array,) = plan.scatter(name, array, [request])
            elif rows and array.shape[:1] != (rows,):
                raise wrong_rows(name, array.shape, rows)
            outputs.append(self._tensor(name, array))
        return Reply(outputs)

    def _join_inputs(self, batch: Sequence[BackendRequest]) -> dict[str, Any]:
        """Return the inputs of a batch.

        Raises:
            UnicodeDecodeError: a request has text that is not UTF-8.
        """
        plan = self._plan
        feed: dict[str, Any] = {}
        for index, first in enumerate(batch[0].inputs):
            name = first.name
            parts = [_array(input_of(request, index, name), False, False) for request in batch]
            try:
                feed[name] = ragged.flatten(parts) if name in plan.flattened else join(parts)
            except ValueError as error:
                raise not_joined(name, [part.shape for part in parts]) from error
        if plan.batch_inputs:
            feed.update({name: array for name, _, array in plan.made_inputs(batch)})
        return feed

    def _execute_joined(self, batch: Sequence[BackendRequest], feed: dict[str, Any], timing: Timing) -> list[Reply]:
        plan = self._plan
        timing.input_end_ns = time.monotonic_ns()
        names = plan.wanted(batch)
        arrays = self._run(names, feed)
        timing.output_start_ns = time.monotonic_ns()
        rows = [request.inputs[0].shape[0] for request in batch]
        replies = [Reply() for _ in batch]
        for name, array in zip(names, arrays, strict=True):
            parts = plan.scatter(name, array, batch) if name in plan.batch_outputs else _split(name, array, rows)
            for request, reply, part in zip(batch, replies, parts, strict=True):
                if name in request.requested_outputs or name in plan.states:
                    reply.outputs.append(self._tensor(name, part))
        return replies

    def _run(self, names: list[str], feed: dict[str, Any]) -> Sequence[Array]:
        if not names:
            return []
        run = sessions.run_values if self._plan.through_values else sessions.run
        session = self._session.only
        if session is not None:  # spares the lock, which takes 0.5 us
            return run(session, names, feed, self._run_options)
        with self._session as session:
            return run(session, names, feed, self._run_options)

    def _tensor(self, name: str, array: Array) -> InferTensor:
        datatype, shape = self._plan.outputs[name], array.shape
        if not shape:
            array = array.reshape(self._plan.output_shape(name, ()))
            shape = array.shape
        if datatype is _BYTES or not array.size or not array.flags.c_contiguous:
            return InferTensor(name, datatype, shape, from_array(array, datatype))
        return InferTensor(name, datatype, shape, array.data.cast("B"))

    def is_ready(self) -> bool:
        """A loaded session always is."""
        return True

    def close(self) -> None:
        """Release the session."""
        del self._session


def _array(tensor: InferTensor, scalar: bool, any_text: bool) -> Array:
    """The values of an input, a view where they lie aligned, with strings as the library wants them.

    Raises:
        UnicodeDecodeError: a string is not UTF-8, without `any_text`.
        InvalidArgument: strings that are not UTF-8 would take too much memory.
    """
    datatype, shape = tensor.datatype, () if scalar else tensor.shape
    if datatype is _BYTES:
        strings = to_array(tensor.data, _BYTES, shape)
        try:
            return _text_array(strings)
        except UnicodeDecodeError:
            if not any_text:
                raise
            return _padded(strings, tensor)
    array: Array = np.ndarray(shape, datatype.numpy, tensor.data)
    return array if array.flags.aligned else array.copy()


def _text_array(array: Array) -> Array:
    """Return the elements (bytes) as `str`, which ONNX Runtime takes. Raises UnicodeDecodeError."""
    elements = array.ravel().tolist()
    text = np.empty(len(elements), dtype=object)
    text[:] = [element.decode() for element in elements]
    return text.reshape(array.shape)


def _padded(array: Array, tensor: InferTensor) -> Array:
    """Return the elements (bytes) in an array of fixed width, the only one in which ONNX Runtime takes any bytes.

    A string ends at its first zero byte, as in Triton. Each gets one: the library reads to it, also beyond the width.
    """
    width = max(map(len, array.flat)) + 1
    size, most = array.size * width, max(_MOST_PADDED, 4 * len(tensor.data))
    if size > most:
        raise InvalidArgument(
            f"input '{tensor.name}' has text that is not UTF-8: its {array.size} strings take {size} bytes, each with "
            f"the length of the longest, expected at most {most}; send UTF-8, or fewer or shorter strings"
        )
    padded: Array = array.astype(f"S{width}")
    return padded


def _split(name: str, array: Array, rows: Sequence[int]) -> list[Array]:
    total = sum(rows)
    if array.ndim == 0 or array.shape[0] != total:
        raise wrong_rows(name, array.shape, total)
    return split(array, rows)
