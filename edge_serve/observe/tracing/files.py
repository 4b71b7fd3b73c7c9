"""Trace files: JSON arrays that a separate thread writes, and that are valid JSON after each write."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from edge_serve.aio.sink import Sink
from edge_serve.errors import EdgeServeError
from edge_serve.messages.settings import TraceSettings
from edge_serve.messages.trace import Trace, continue_always
from edge_serve.records import frozen, slotted

log = logging.getLogger(__name__)

#: bytes of traces in memory; when the file takes them more slowly than they come, further ones are lost
MOST_MEMORY = 64 << 20
#: bytes of traces that wait for others of their batch; beyond, they are written early
MOST_WAITING = 8 << 20
#: bytes written in one system call
_AT_ONCE = 1 << 20
#: the array of a file in which there is no trace
_EMPTY = b"[]"
#: how long `close` waits for the disk, seconds; within TimeoutStopSec= of the unit behind --exit-timeout-secs
CLOSE_SECONDS = 5.0
#: how long it then waits until the thread has closed the array of a file, seconds
_STOP_SECONDS = 1.0
#: `json.dumps` with these separators makes an encoder for each call
_encode = json.JSONEncoder(separators=(",", ":")).encode


class _Stopped(Exception):
    """The server stops, and its time for writing traces is over."""


def entries(trace: Trace, proceed: Callable[[], None] = continue_always) -> Iterator[dict[str, Any]]:
    """Yield the objects of one trace. As in Triton's files, timestamps from before the request's start come first.

    Args:
        proceed: called again and again; it may raise an error to stop.
    """
    about: dict[str, Any] = {"id": trace.id, "model_name": trace.model_name, "model_version": int(trace.model_version)}
    if trace.request_id:
        about["request_id"] = trace.request_id
    if trace.parent_id:
        about["parent_id"] = trace.parent_id
    marks = trace.timestamps or []
    start = next((place for place, mark in enumerate(marks) if mark[0] == "REQUEST_START"), 0)
    for name, ns in marks[:start]:
        yield {"id": trace.id, "timestamps": [{"name": name, "ns": ns}]}
    yield about
    for name, ns in marks[start:]:
        yield {"id": trace.id, "timestamps": [{"name": name, "ns": ns}]}
    for record in trace.tensors or ():
        try:
            text = record.text(proceed)
        except EdgeServeError:  # its request fails with the reason
            continue
        shape = ",".join(map(str, record.shape))
        tensor = {"name": record.name, "data": text, "shape": shape, "dtype": record.datatype.name}
        yield {"id": trace.id, "activity": record.activity, "tensor": tensor}
    if trace.cut_ns:
        yield {"id": trace.id, "timestamps": [{"name": "TRACE_CUT", "ns": trace.cut_ns}]}


@slotted
class TraceBatch:
    """Traces of one setting that wait for others of the same numbered file.

    Attributes:
        count: how many there were; `traces` are those that are not written yet.
        memory: bytes of `traces`.
        number: of the file; None = nothing is in it yet.
    """

    traces: list[Trace] = field(default_factory=list)
    count: int = 0
    memory: int = 0
    number: int | None = None


@frozen
class _Job:
    """Traces for the file `path`, the last ones if `last`; `file` is the one of the setting."""

    file: str = ""
    path: str = ""
    traces: tuple[Trace, ...] = ()
    last: bool = False


class TraceFiles:
    """Takes traces that are complete, those of a client's requests with all that belong to them.

    Where neither `log_frequency` nor `count` is set, all go to one file, each as it comes. With a frequency, files are
    numbered and hold that many. Those of a limited count are kept until it is used up, and go to a numbered file then
    (server src/tracer.cc, `WriteTrace`); what is left when the setting changes goes to the one file without a
    frequency, and to a numbered one with it. Each setting has a batch of its own. Traces of more than `MOST_WAITING`
    bytes do not wait in memory: they go to their numbered file early, and those that follow are appended.

    Attributes:
        memory: bytes of traces that are not written yet.
    """

    def __init__(self) -> None:
        self._sink: Sink[_Job] | None = None
        #: bytes of the traces in batches
        self._waiting = 0
        self._next_number: dict[str, int] = {}
        #: by the thread: files that it has written to and that are not complete; others are emptied first
        self._begun: set[str] = set()
        #: of what follows, which the thread changes too
        self._lock = threading.Lock()
        self.memory = 0
        #: traces lost by file, since the last one that was written
        self._lost: dict[str, int] = {}
        #: the thread writes no more
        self._stopped = threading.Event()

    def add(self, trace: Trace, values: TraceSettings, batch: TraceBatch) -> None:
        """Write a trace, or keep it in the batch of its setting until enough are together. Never blocks."""
        with self._lock:
            waiting = self.memory
            fits = waiting + trace.memory <= MOST_MEMORY
            self.memory += trace.memory * fits
        if not fits:
            self._lose(values.file, 1, f"they come faster than they are written, {waiting} bytes of them wait")
            return
        if not values.log_frequency and values.count < 0:
            self._hand_over(values.file, values.file, [trace])
            return
        batch.traces.append(trace)
        batch.count += 1
        batch.memory += trace.memory
        self._waiting += trace.memory
        if batch.count == values.log_frequency:
            self.flush(values, batch)
        elif self._waiting > MOST_WAITING:
            self._write_numbered(values.file, batch)

    def flush(self, values: TraceSettings, batch: TraceBatch) -> None:
        """Write the traces of a batch, and begin it anew: it is complete, its setting changes, or the server stops."""
        if not batch.count:
            return
        if values.log_frequency or not values.count or batch.number is not None:
            self._write_numbered(values.file, batch, last=True)
        else:
            self._hand_over(values.file, values.file, self._take(batch))
        batch.count, batch.number = 0, None

    def written(self, seconds: float) -> bool:
        """Wait at most so long until the thread has written what it was given. Return whether it has."""
        return self._sink is None or self._sink.flush(seconds)

    def close(self) -> None:
        """Block until everything is written that is in no batch, at most `CLOSE_SECONDS`."""
        sink, self._sink = self._sink, None
        if sink is not None and not sink.close(CLOSE_SECONDS):
            text = "traces are lost: %d bytes of them were not written within %g s; trace fewer requests or no tensors"
            log.error(f"{text}, or choose a file on a faster disk", self.memory, CLOSE_SECONDS)
            self._stopped.set()
            sink.flush(_STOP_SECONDS)  # the end of the process would kill the thread within an array
        for file, count in self._lost.items():
            log.error("%d traces were lost: '%s' could not be written", count, file)
        self._lost.clear()

    def _write_numbered(self, file: str, batch: TraceBatch, *, last: bool = False) -> None:
        if batch.number is None:
            batch.number = self._next_number.get(file, 0)
            self._next_number[file] = batch.number + 1
        self._hand_over(file, f"{file}.{batch.number}", self._take(batch), last=last)

    def _take(self, batch: TraceBatch) -> list[Trace]:
        """Return the traces of a batch, which wait no more."""
        self._waiting -= batch.memory
        traces, batch.traces, batch.memory = batch.traces, [], 0
        return traces

    def _hand_over(self, file: str, path: str, traces: list[Trace], *, last: bool = False) -> None:
        if self._sink is None:
            self._sink = Sink(self._append, lambda _: _Job(), "trace files")
        self._sink.put(_Job(file, path, tuple(traces), last), 0)  # their bytes are counted already

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _append(self, job: _Job) -> None:
        reason = ""
        try:
            if job.traces:  # else all of a numbered file were handed over before
                self._proceed()  # before the file of an earlier server is emptied
                append(job.path, job.traces, job.path not in self._begun, self._proceed)
                self._begun.add(job.path)
        except _Stopped:  # `close` has said so
            return
        except OSError as error:
            reason = error.strerror or str(error)
        except Exception as error:  # an error in our code must not end the thread
            reason = repr(error)
        if job.last:
            self._begun.discard(job.path)
        with self._lock:
            self.memory -= sum(trace.memory for trace in job.traces)
            works = not reason and not self.memory
            lost = self._lost.pop(job.file, 0) if works else 0
        if reason:
            self._lose(job.file, len(job.traces), f"{reason}; mend that, or choose another file")
        elif lost:
            log.warning("traces are written to '%s' again; %d were lost", job.file, lost)

    def _proceed(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _lose(self, file: str, count: int, reason: str) -> None:
        """Count lost traces, and say so of the first."""
        with self._lock:
            before = self._lost.get(file, 0)
            self._lost[file] = before + count
        if not before:
            text = "traces are lost, '%s' cannot be written: %s; the log says when it works and how many are lost"
            log.error(text, file, reason)


def append(path: str, traces: Sequence[Trace], first: bool, proceed: Callable[[], None] = continue_always) -> None:
    """Put traces, and those that belong to them, into the array in file `path`, a new one when `first`.

    Args:
        proceed: called again and again; it may raise an error to stop.

    Raises:
        OSError: it cannot be written; what was there before is a whole array again, as after any other error.
    """
    # a FIFO without a reader would block
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if first:
            os.ftruncate(descriptor, 0)
        size = os.lseek(descriptor, 0, os.SEEK_END)
        end = size - 1 if size > len(_EMPTY) else 0  # before the closing bracket
        os.lseek(descriptor, end, os.SEEK_SET)
        try:
            for data in _blocks(traces, b"," if end else b"[", proceed):
                _write_all(descriptor, data)
        except BaseException:  # also MemoryError, of tensors that become text
            os.ftruncate(descriptor, end)
            os.pwrite(descriptor, b"]" if end else _EMPTY, end)
            raise
    finally:
        os.close(descriptor)


def _blocks(traces: Sequence[Trace], before: bytes, proceed: Callable[[], None]) -> Iterator[bytearray]:
    """Yield the entries as JSON with commas between them, behind `before` and with the closing bracket."""
    block = bytearray()
    for trace in traces:
        for one in trace.group:
            proceed()
            for entry in entries(one, proceed):
                block += before + _encode(entry).encode()
                before = b","
                if len(block) >= _AT_ONCE:
                    yield block
                    block = bytearray()
    block += b"]"
    yield block


def _write_all(descriptor: int, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
