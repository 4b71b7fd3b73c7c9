"""Pool of codec processes, front-end side: reads and writes JSON that would block the event loop.

The pool starts a process when a job needs one, runs at most `most` of them, and closes a process that had no job for a
while. A process that dies fails its own job only. `main` runs in the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable

from edge_serve.errors import Cancelled, EdgeServeError, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.status import WorkerFacts
from edge_serve.workers.codec.job import Body, CodecJob, DecodeJob, Encoded, EncodeJob, Refused
from edge_serve.workers.codec.messages import pack_response
from edge_serve.workers.front.process import Process, ProcessLimits
from edge_serve.workers.memory.arena import Arena, Budget, Slot
from edge_serve.workers.wire.frames import NEED, Frame, FrameError, FrameKind, slot_frame

log = logging.getLogger(__name__)

_MODULE = "edge_serve.workers.codec.main"


class Codec:
    """The codec processes of a server; lives on one event loop.

    Args:
        budget: of the memory for jobs that have no model's arena.
        most: processes at the same time.
        idle_seconds: after which a process without a job is closed.
        job_seconds: after which a process is killed that is still at its job.
    """

    def __init__(
        self,
        budget: Budget,
        limits: ProcessLimits | None = None,
        *,
        most: int = 2,
        idle_seconds: float = 120.0,
        job_seconds: float = 60.0,
    ) -> None:
        self.limits = limits or ProcessLimits()
        self.idle_seconds = idle_seconds
        self.job_seconds = job_seconds
        self._budget = budget
        self._most = most
        self._queue: deque[CodecJob] = deque()
        #: oldest first; also those that are closing
        self._members: list[_Member] = []
        self._numbers = itertools.count(1)
        self._own: Arena | None = None
        self._stopped = False

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def decode(self, body: Body, done: Callable[[InferRequest | Refused], None]) -> CodecJob:
        """Read a body and pass the validated request, or the refusal, to `done`.

        Takes over the body's lease; the request has a lease of its own. Never raises.
        """
        return self._add(DecodeJob(body, done), body.arena)

    def encode(
        self,
        response: InferResponse,
        request: InferRequest,
        signature: Signature,
        accept: str,
        done: Callable[[Encoded | Refused], None],
        generate: bool = False,
    ) -> CodecJob:
        """Write the body of a reply and pass it, or the refusal, to `done`.

        Takes over the response's lease. Never raises.

        Args:
            generate: the response answers `generate`, for which `request` and `accept` do not matter.
        """
        lease = response.lease
        found = lease.arena if lease is not None else None
        arena = found if isinstance(found, Arena) else None
        value = pack_response(response, request, signature, accept, arena is not None, generate)
        return self._add(EncodeJob(value, lease, done), arena)

    def _add(self, job: CodecJob, arena: Arena | None) -> CodecJob:
        """Queue a job whose memory is in `arena`; None = in the codec's own arena."""
        job.on_cancel = lambda: self._cancel(job)
        try:
            if self._stopped:
                raise Unavailable("Server exiting")
            job.arena = arena or self._own_arena()
        except Unavailable as error:
            job.fail(error)
            return job
        self._queue.append(job)
        self.pump()
        return job

    def _own_arena(self) -> Arena:
        if self._own is None:
            self._own = Arena("codec", self._budget)
        return self._own

    def _cancel(self, job: CodecJob) -> None:
        """Fail a job that waits. A job that runs ends when its process answers."""
        with contextlib.suppress(ValueError):
            self._queue.remove(job)
            job.fail(Cancelled(""))

    # ---- processes ------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return the numbers of the processes that take jobs, for logs and tests."""
        return [member.process.pid for member in self._open_members()]

    def facts(self) -> list[WorkerFacts]:
        """Return each process that takes jobs, for the status document."""
        return [WorkerFacts("codec", pid) for pid in self.pids()]

    async def stop(self, timeout: float | None = None) -> None:
        """Close all processes, and kill those that still run after `timeout` seconds; fail all jobs.

        Args:
            timeout: None = `ProcessLimits.close`.
        """
        self._stopped = True
        while self._queue:
            self._queue.popleft().fail(Unavailable("Server exiting"))
        for member in self._members:
            member.close()
        seconds = self.limits.close if timeout is None else timeout
        await asyncio.gather(*(member.process.wait(seconds) for member in self._members))
        if self._own is not None:
            self._own.close()

    def pump(self) -> None:
        """Send waiting jobs to idle processes; start a process when all are busy and there may be another."""
        while self._queue:
            member = next((member for member in self._members if member.is_idle), None) or self._start()
            if member is None:
                return
            member.run(self._queue.popleft(), next(self._numbers))

    def _start(self) -> _Member | None:
        """Start a process; its first job waits in its socket until it is up. Return None when there may be no more."""
        running = self._open_members()
        if len(running) >= self._most:
            return None
        try:
            member = _Member(self)
        except Unavailable as error:
            if not running:
                waiting = list(self._queue)
                self._queue.clear()
                for job in waiting:
                    job.fail(error)
            return None
        self._members.append(member)
        return member

    def _open_members(self) -> list[_Member]:
        return [member for member in self._members if not member.is_closing]

    def on_exit(self, member: _Member, reason: str) -> None:
        """Fail the job of a process that has ended, and was reaped: it does not touch the job's memory any more."""
        self._members.remove(member)
        job = member.take()
        if not member.is_closing:
            log.error("codec process (pid %d) %s", member.process.pid, reason)
        if job is not None:
            job.fail(Unavailable(f"the codec process {reason} while it {job.doing}; try again"))
        self.pump()


class _Member:
    """One codec process: idle, at a job, or closing."""

    def __init__(self, codec: Codec) -> None:
        self.is_closing = False
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._job: CodecJob | None = None
        self._number = 0
        #: for the next job; the first one waits until the process is up
        self._job_seconds = codec.limits.hello + codec.job_seconds
        self.process = Process(self._loop, "codec", codec.limits, self._on_frame, _MODULE)
        self.process.exited.add_done_callback(lambda exited: codec.on_exit(self, exited.result()))
        #: closes the process while it is idle; kills it while it is at a job or closing
        self._timer = self._loop.call_later(codec.idle_seconds, self.close)

    @property
    def is_idle(self) -> bool:
        """Whether it takes a job."""
        return self._job is None and not self.is_closing and not self.process.exited.done()

    def run(self, job: CodecJob, number: int) -> None:
        """Start a job, or fail it when it cannot be sent."""
        try:
            if job.arena.fd < 0:
                raise Unavailable("the model was unloaded")
            parts = job.parts(number)
        except EdgeServeError as error:
            job.fail(error)
            return
        self._job, self._number = job, number
        self._limit(self._job_seconds, f"was killed: a job took longer than {self._job_seconds:g} s")
        self._job_seconds = self._codec.job_seconds
        self.process.send(parts[0], [job.arena.fd])
        for part in parts[1:]:
            self.process.send(part)

    def take(self) -> CodecJob | None:
        """Return the job, if there is one; the process has no job any more."""
        self._timer.cancel()
        job, self._job = self._job, None
        return job

    def close(self) -> None:
        """Ask the process to end, and kill it when it does not."""
        self.is_closing = True
        self.process.close()
        self._limit(self._codec.limits.close, "did not end")

    def _limit(self, seconds: float, reason: str) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.process.kill, reason)

    def _on_frame(self, received: Frame) -> None:
        if received.kind == FrameKind.LOG:
            value = received.json()
            level = value.get("level")
            log.log(level if isinstance(level, int) else logging.INFO, "codec: %s", value.get("text"))
            return
        job = self._job
        if job is None:
            raise FrameError(f"found kind {received.kind} while there was nothing to do")
        if received.kind == FrameKind.NEED_OUTPUT and job.granted is None:
            self._grant(job, received)
        elif received.kind == FrameKind.CODED and received.id == self._number:
            outcome = job.outcome(received.json())  # a FrameError leaves the job here: the process's end fails it
            self.take()
            if not self.is_closing:
                self._timer = self._loop.call_later(self._codec.idle_seconds, self.close)
                self._codec.pump()
            job.close(outcome)
        else:
            raise FrameError(f"found kind {received.kind} for job {received.id}")

    def _grant(self, job: CodecJob, received: Frame) -> None:
        """Allocate the memory that a NEED_OUTPUT asks for, and send the answer when it is there."""
        if len(received.payload) != NEED.size:
            raise FrameError("a NEED_OUTPUT has another length")
        nbytes, token, _ = NEED.unpack(received.payload)
        try:
            slot = job.granted = job.arena.allocate(nbytes)
        except Unavailable as full:
            self._answer(token, full)
        else:
            slot.when_ready(lambda: self._answer(token, slot.error or slot))

    def _answer(self, token: int, slot: Slot | Unavailable) -> None:
        place = (0, 0, slot.message) if isinstance(slot, Unavailable) else (slot.offset, slot.capacity)
        self.process.send(slot_frame(0, token, *place))
