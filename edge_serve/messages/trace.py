"""The record of one traced request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import DataType, InferTensor, Shape, is_unseen, to_array

if TYPE_CHECKING:
    from edge_serve.messages.tensors import Array

#: name and time
Timestamp = tuple[str, int]


#: bytes of all traces of one client's request. Timestamps and tensors beyond that are left out, as of an endless
#: stream. Far below MOST_MEMORY of observe.tracing.files, so that a trace that was cut still fits beside others
MOST_BYTES = 16 << 20
#: about how many bytes a trace takes, a timestamp, and the record of a tensor without its data
_BYTES, _MARK_BYTES, _RECORD_BYTES = 2048, 100, 256
#: values that become text at once: other threads run in between
_VALUES_AT_ONCE = 4096


def continue_always() -> None:
    """Do nothing. As `proceed` of a trace, it never stops the writing."""


class TensorRecord(NamedTuple):
    """A copy of a tensor, because its memory is used again."""

    activity: str
    name: str
    data: bytes
    shape: Shape
    datatype: DataType

    def text(self, proceed: Callable[[], None] = continue_always) -> str:
        """Return the values with commas between them, as C++ streams print them: six digits of floats, strings in
        quotes. This takes up to a fifth of a microsecond for each value, so the event loop leaves it to another thread.

        Args:
            proceed: called again and again; it may raise an error to stop.

        Raises:
            EdgeServeError: the bytes do not make up the shape.
        """
        values = to_array(self.data, self.datatype, self.shape).reshape(-1)
        texts = []
        for at in range(0, len(values), _VALUES_AT_ONCE):
            proceed()
            texts.append(_joined(values[at : at + _VALUES_AT_ONCE], self.datatype))
        return ",".join(texts)


class Recorder(Protocol):
    """The receiver of finished traces (observe.tracing.tracing)."""

    def next_id(self) -> int: ...
    def now_ns(self) -> int: ...
    def collect(self, trace: Trace) -> None:
        """Take the complete trace of a client's request, and those that belong to it."""


class Trace(ComputeTimes):
    """One request's trace. It takes the place of `InferRequest.compute`, so the driver tells it the compute times.

    What a request leads to (steps of an ensemble, calls of a model) has traces of its own. They are collected together
    with that of the client's request, the `root`, when each has left: every trace, and the door that answers.

    Attributes:
        timestamps: what happened and when, CLOCK_MONOTONIC nanoseconds; None = not wanted.
        tensors: what went in and out; None = not wanted.
        composed: the parts of its ensemble tell when they computed.
        later: marks that are to stand behind all others.
        closed: it is being written, and what still happens is not told.
        group: of a root: itself, and all that belong to it.
        memory: of a root: about how many bytes the traces of the group take, at most `MOST_BYTES`.
        cut_ns: of a root: when the group first left something out, because it has `MOST_BYTES`; 0 = it has not.
    """

    def __init__(
        self, number: int, recorder: Recorder, *, timestamps: bool, tensors: bool, parent: Trace | None = None
    ) -> None:
        super().__init__(trace=self)
        self.id = number
        self.parent_id = 0 if parent is None else parent.id
        self.model_name = ""
        self.model_version = ""
        self.request_id = ""
        self.composed = self.closed = False
        self.later: list[Timestamp] = []
        self.root: Trace = self if parent is None else parent.root
        self.group: list[Trace] = []
        self.memory = self.cut_ns = 0
        self._recorder = recorder
        admitted = self._admit(_BYTES)
        self.timestamps: list[Timestamp] | None = [] if timestamps and admitted else None
        self.tensors: list[TensorRecord] | None = [] if tensors and admitted else None
        if admitted:
            self.root.group.append(self)
        self._sum: ComputeTimes | None = None
        self._here = 0
        #: the model may answer before `execute` returns; it has, and the request ends with that
        self._outlives = self._runs = False
        self.acquire()

    def part(self, model: str, version: str, request: InferRequest) -> Trace:
        """Return the trace of a request that this one has led to, which becomes that request's `compute`."""
        recorder = self._recorder
        made = Trace(
            recorder.next_id(),
            recorder,
            timestamps=self.timestamps is not None,
            tensors=self.tensors is not None,
            parent=self,
        )
        made._sum = request.compute
        made.open(model, version, request)
        return made

    def open(self, model: str, version: str, request: InferRequest) -> None:
        """Open the trace of a request that is sent to its model."""
        self.model_name, self.model_version, self.request_id = model, version, request.id
        now = self._recorder.now_ns()
        self.mark("REQUEST_START", now)
        self.mark("QUEUE_START", now)
        self.add_tensors("TENSOR_QUEUE_INPUT", request.inputs)
        self._outlives = request.validated is not None and request.validated.decoupled
        request.compute = self

    def answered(self, response: InferResponse) -> None:
        """Record a response of the model; after the last one, the reporter calls `release`."""
        self.add_tensors("TENSOR_BACKEND_OUTPUT", response.outputs)
        if not response.final:
            return
        if self._outlives and not self.composed and response.error is None:
            self._runs = True
            self.acquire()
        else:
            self.mark("REQUEST_END", self._recorder.now_ns())

    def acquire(self) -> None:
        """Keep the trace open for one more reporter."""
        self.root._here += 1

    def release(self) -> None:
        """Remove a reporter. The last one ends the trace."""
        root = self.root
        root._here -= 1
        if not root._here:
            root.close()

    def close(self) -> None:
        """Close a root trace: it has no reporter left, or none may report any more."""
        if not self.closed:
            if self.timestamps is not None:
                self.timestamps += self.later
            self.closed = True
            self._recorder.collect(self)

    def now_ns(self) -> int:
        """Return the time now, as marks have it."""
        return self._recorder.now_ns()

    def mark(self, name: str, ns: int, *, late: bool = False) -> None:
        """Record a timestamp, behind all others if `late`."""
        if self.timestamps is not None and self._admit(_MARK_BYTES):
            (self.later if late else self.timestamps).append((name, ns))

    def add(self, compute_start_ns: int, input_end_ns: int, output_start_ns: int, compute_end_ns: int) -> None:
        """Record that the model has executed the request."""
        if self._sum is not None:
            self._sum.add(compute_start_ns, input_end_ns, output_start_ns, compute_end_ns)
        if self.composed:
            return
        self.mark("COMPUTE_START", compute_start_ns)
        self.mark("COMPUTE_INPUT_END", input_end_ns)
        self.mark("COMPUTE_OUTPUT_START", output_start_ns)
        self.mark("COMPUTE_END", compute_end_ns)
        self._outlives = False
        if self._runs:
            self._runs = False
            self.mark("REQUEST_END", self._recorder.now_ns())
            self.release()

    def add_tensors(self, activity: str, tensors: Sequence[InferTensor]) -> None:
        """Record tensors as they are now: TENSOR_QUEUE_INPUT or TENSOR_BACKEND_OUTPUT."""
        if self.tensors is None:
            return
        self.tensors += [
            TensorRecord(activity, tensor.name, bytes(tensor.data), tensor.shape, tensor.datatype)
            for tensor in tensors
            if not is_unseen(tensor.data) and self._admit(_RECORD_BYTES + memoryview(tensor.data).nbytes)
        ]

    def _admit(self, size: int) -> bool:
        """Count `size` further bytes of the group. Return whether they may be recorded."""
        root = self.root
        if root.closed:
            return False
        if root.memory + size > MOST_BYTES:
            root.cut_ns = root.cut_ns or self._recorder.now_ns()
            return False
        root.memory += size
        return True


class Arrival:
    """A request at a door, from its first byte to the last byte of its answer, for its trace if it gets one.

    Args:
        received: the timestamps that the door has recorded already.
        late: record the timestamps of the door at the end, after all others, as Triton's gRPC endpoint does.
        streams: answers leave within the callback that hands them over.
    """

    __slots__ = ("_late", "_received", "_told", "_trace", "streams")

    def __init__(self, received: Sequence[Timestamp], *, late: bool = False, streams: bool = False) -> None:
        self.streams = streams
        self._received = received
        self._late = late
        self._trace: Trace | None = None
        self._told = False

    def traced(self, trace: Trace) -> None:
        """Report to the trace of the request, which is not complete before `release`."""
        self._trace = trace
        trace.acquire()
        for name, ns in self._received:
            self._mark(name, ns)

    def mark(self, name: str) -> None:
        """Record a timestamp of the door."""
        if self._trace is not None:
            self._mark(name, self._trace.now_ns())

    def answered(self) -> None:
        """Record that the door has a response; of several over gRPC only the first, as in Triton."""
        if not self._late or not self._told:
            self._told = True
            self.mark("INFER_RESPONSE_COMPLETE")

    def sending(self, on_sent: Callable[[], None] | None = None) -> Callable[[], None]:
        """Mark that the answer is being sent. Return the function to call when it is, which calls `on_sent`."""
        door = "GRPC" if self._late else "HTTP"
        self.mark(f"{door}_SEND_START")

        def sent() -> None:
            self.mark(f"{door}_SEND_END")
            self.release()
            if on_sent is not None:
                on_sent()

        return sent

    def release(self) -> None:
        """Release the trace: the answer is sent, or the client has disconnected. May be called again."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.release()

    def _mark(self, name: str, ns: int) -> None:
        assert self._trace is not None, "the callers have looked"
        self._trace.mark(name, ns, late=self._late)


def _joined(values: Array, datatype: DataType) -> str:
    """Return the text of some values.

    Numbers become text without a Python call for each: a server that stops has little time to write its traces.
    """
    if datatype is DataType.BYTES:
        return ",".join([f'"{value.decode(errors="replace")}"' for value in values])
    if datatype.size <= 2:
        texts: bytes = _table(datatype)[values.view(f"u{datatype.size}")].tobytes()
        return texts.translate(None, b"\0")[:-1].decode()
    if values.dtype.kind == "f":
        return ",".join(["%g"] * len(values)) % tuple(values.tolist())
    return ",".join(map(repr, values.tolist()))


@cache
def _table(datatype: DataType) -> Array:
    """Return the texts of all values of one or two bytes, each with a comma behind it, by their bits."""
    import numpy as np

    values = np.arange(256**datatype.size).astype(f"<u{datatype.size}").view(datatype.numpy)
    if datatype is DataType.BF16:  # the upper halves of FP32
        values = (values.astype("<u4") << 16).view("<f4")
    form = "g" if values.dtype.kind == "f" else "d"
    return np.array([f"{value:{form}},".encode() for value in values.tolist()])
