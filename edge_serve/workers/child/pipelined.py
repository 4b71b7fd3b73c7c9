"""One instance that begins its next batch while one runs: a thread that receives and begins, and one that finishes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import field
from queue import SimpleQueue
from typing import Any

from edge_serve.backends.base import BackendInstance, BackendRequest, QueueingInstance, Reply, Timing
from edge_serve.records import slotted
from edge_serve.workers.child.batch import Answers, Batch, decode_execute, encode_reply, in_time, with_late
from edge_serve.workers.child.instance import Instance, IterativeInstance, exit_worker
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.wire.layout import TensorLayout


@slotted
class _Run:
    """One call of `begin`: a batch, or one request of a batch whose requests are executed one after the other.

    Attributes:
        failed: the replies, if `begin` failed.
    """

    requests: Sequence[BackendRequest]
    timing: Timing
    start_ns: int
    begun: Any = None
    failed: list[Reply] | None = None


@slotted
class _Batch:
    """A batch on its way through both threads.

    Attributes:
        late: positions of requests that are not executed.
        inputs_ns, outputs_ns: the time of all runs before and after the computation.
    """

    batch: Batch
    room: OutputRoom
    start_ns: int
    late: set[int] = field(default_factory=set)
    replies: list[Reply] = field(default_factory=list)
    inputs_ns: int = 0
    outputs_ns: int = 0


class PipelinedInstance(Instance):
    """An `Instance` whose backend is a `QueueingInstance`. The front end sends at most `seats` batches at once.

    Batches are answered in the order in which they arrived. It does not poll for its next batch: the thread that
    finishes needs the interpreter.
    """

    backend: QueueingInstance

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._runs: SimpleQueue[tuple[_Batch, _Run | None] | None] = SimpleQueue()
        #: batches that have arrived and are not answered
        self._unanswered = 0
        self._count_lock = threading.Lock()
        self._finisher = threading.Thread(target=self._finish_all, name=f"{self.name} finish", daemon=True)

    @property
    def seats(self) -> int:
        """See `QueueingInstance`."""
        return self.backend.seats

    def run(self) -> None:
        """See `Instance.run`."""
        self._finisher.start()
        super().run()

    def _close(self) -> None:
        """Wait until the device has finished all batches, whether or not the front end still wants the replies."""
        self._runs.put(None)
        self._finisher.join()
        super()._close()

    # ---- the thread that receives ---------------------------------------------------------------------------------

    def _serve(self, received: bytearray) -> int:
        with self._count_lock:
            if self._lost:  # the process ends with the batches before it, however many still come
                return 0
            self._unanswered += 1
        start = time.monotonic_ns()
        try:
            marks = self._cancellations.marks
            batch = decode_execute(self._layout, received, self.inputs, marks, None, self._imports)
        except Exception as fault:  # no memory, say
            self._refuse(received, fault)
            self._answered()
            return 0
        requests, late = in_time(batch, start)
        one = _Batch(batch, self._room(batch), start, late)
        for together in [(request,) for request in requests] if batch.each else [requests]:
            if together:
                self._runs.put((one, self._enqueue(one, together)))
        self._runs.put((one, None))
        return 0

    def _enqueue(self, one: _Batch, requests: Sequence[BackendRequest]) -> _Run:
        run = _Run(requests, Timing(), time.monotonic_ns())
        try:
            run.begun = self.backend.begin(requests, one.room, run.timing)
        except BaseException as fault:  # a library may raise anything: it ends its batch, not its worker
            run.failed = self._failures(fault, len(requests))
        return run

    # ---- the thread that finishes ---------------------------------------------------------------------------------

    def _finish_all(self) -> None:
        try:
            while self._finish_next():
                pass
        except BaseException:  # no batch would be answered any more: the front end restarts the worker
            traceback.print_exc()
            self._socket.shutdown(socket.SHUT_RDWR)

    def _finish_next(self) -> bool:
        """Wait for the next run or end of a batch. Return False when none follows. A call of its own for each, so that
        the last batch does not keep its tensors, and clients' memory, until the next one comes."""
        item = self._runs.get()
        if item is None:
            return False
        one, run = item
        if run is not None:
            self._finish(one, run)
            return True
        with contextlib.suppress(OSError):  # the front end is gone; what has begun is finished nevertheless
            self._answer(one)
        self._answered()
        return True

    def _answered(self) -> None:
        """Count a batch that is done. When the device is lost, the last one ends the worker."""
        with self._count_lock:
            self._unanswered -= 1
            if self._lost and not self._unanswered:
                exit_worker(self._lost)

    def _finish(self, one: _Batch, run: _Run) -> None:
        if run.failed is not None:
            one.replies += run.failed
            return
        try:
            one.replies += self._counted(self.backend.finish(run.begun), len(run.requests))
        except BaseException as fault:
            one.replies += self._failures(fault, len(run.requests))
        now, timing = time.monotonic_ns(), run.timing
        one.inputs_ns += max(0, (timing.input_end_ns or run.start_ns) - run.start_ns)
        one.outputs_ns += max(0, now - (timing.output_start_ns or now))

    def _answer(self, one: _Batch) -> None:
        batch, now = one.batch, time.monotonic_ns()
        replies = with_late(one.replies, one.late, len(batch.requests)) if one.late else one.replies
        marks = (one.start_ns, one.start_ns + one.inputs_ns, now - one.outputs_ns)
        try:
            answers = Answers(self._layout, one.room, len(replies))
            self._encode(answers, batch, replies)
            self._send(encode_reply(answers, batch.id, marks, time.monotonic_ns))
        finally:
            self._cancellations.done(batch.id)


def kind_of(backend: BackendInstance, layout: TensorLayout) -> type[Instance]:
    """Return the class that serves an instance of a backend."""
    queues = getattr(backend, "seats", 1) > 1 and not layout.decoupled
    if queues:
        return PipelinedInstance
    return IterativeInstance if layout.reruns else Instance
