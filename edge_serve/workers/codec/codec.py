"""The front end's end of the codec processes: what would hold the loop up is read and written there.

None runs until it is needed, at most `most` do, and each ends when it had nothing to do for a while. A job that takes
its process down fails alone. `codec_main` is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from edge_serve.errors import Cancelled, EdgeServeError, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Lease
from edge_serve.messages.signature import Signature
from edge_serve.messages.status import WorkerFacts
from edge_serve.workers.codec.job import Body, CodecJob, DecodeJob, Encoded, EncodeJob, Refused
from edge_serve.workers.codec.messages import pack_response, pack_signature
from edge_serve.workers.front.process import Process, ProcessLimits, ProcessLost
from edge_serve.workers.memory.arena import Arena, Budget, Slot
from edge_serve.workers.wire.frames import NEED, SLOT, Frame, FrameError, FrameKind, frame

log = logging.getLogger(__name__)

_MODULE = "edge_serve.workers.codec.main"
_REMEMBERED_SIGNATURES = 256


class _Member:
    """One codec process, idle or at one job."""

    def __init__(self, codec: Codec, loop: asyncio.AbstractEventLoop, limits: ProcessLimits, seconds: float) -> None:
        self.job: CodecJob | None = None
        self.number = 0
        self.up = False
        self.idle_timer: asyncio.TimerHandle | None = None
        self._codec = codec
        self._loop = loop
        self._seconds = seconds
        self._overrun: asyncio.TimerHandle | None = None
        self.process = Process(loop, "codec", limits, self._on_frame, _MODULE)

    def run(self, job: CodecJob, number: int) -> bool:
        """Begin a job; False when it has failed at once."""
        try:
            if job.arena.fd < 0:
                raise Unavailable("the model was unloaded")
            parts = job.parts(number)
        except EdgeServeError as error:
            job.fail(error)
            return False
        self.job, self.number = job, number
        self._overrun = self._loop.call_later(
            self._seconds, self.process.kill, f"was killed: a job took longer than {self._seconds:g} s"
        )
        self.process.send(parts[0], [job.arena.fd])
        for part in parts[1:]:
            self.process.send(part)
        return True

    def take(self) -> CodecJob | None:
        """The job, which is over."""
        if self._overrun is not None:
            self._overrun.cancel()
        job, self.job = self.job, None
        return job

    def _on_frame(self, received: Frame) -> None:
        if received.kind == FrameKind.LOG:
            value = received.json()
            level = value.get("level")
            log.log(level if isinstance(level, int) else logging.INFO, "codec: %s", value.get("text"))
            return
        job = self.job
        if job is None:
            raise FrameError(f"found kind {received.kind} while there was nothing to do")
        if received.kind == FrameKind.NEED_OUTPUT and job.granted is None:
            self._give(job, received)
        elif received.kind == FrameKind.CODED and received.id == self.number:
            outcome = job.outcome(received.json())  # a FrameError leaves the job here, and the process's end fails it
            self.take()
            self._codec.free(self)
            job.close(outcome)
        else:
            raise FrameError(f"found kind {received.kind} for job {received.id}")

    def _give(self, job: CodecJob, received: Frame) -> None:
        if len(received.payload) != NEED.size:
            raise FrameError("a NEED_OUTPUT has another length")
        nbytes, token = NEED.unpack(received.payload)
        try:
            slot = job.granted = job.arena.allocate(nbytes)
        except Unavailable as full:
            self._answer(token, full)
        else:
            slot.when_ready(lambda: self._answer(token, slot.error or slot))

    def _answer(self, token: int, slot: Slot | Unavailable) -> None:
        if isinstance(slot, Unavailable):
            answer = SLOT.pack(0, token, 0, 0) + slot.message.encode()
        else:
            answer = SLOT.pack(0, token, slot.offset, slot.capacity)
        self.process.send(frame(FrameKind.OUTPUT_SLOT, 0, answer))


class QueuedJob(Protocol):
    """A job that was accepted or refused."""

    def cancel(self) -> None:
        """The caller does not need the result any more."""


class _Refusal:
    """A job that was refused at once."""

    def cancel(self) -> None:
        """See Job."""


def _refused(error: Unavailable, lease: Lease | None, done: Callable[[Refused], None]) -> QueuedJob:
    if lease is not None:
        lease.release()
    done(Refused(error))
    return _Refusal()


class Codec:
    """All codec processes of the server; lives on one event loop.

    Args:
        budget: for what is coded outside of models' arenas.
        most: processes at the same time.
        idle_seconds: without work before a process ends.
        job_seconds: for one job before its process is killed.
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
        self._budget = budget
        self._limits = limits or ProcessLimits()
        self._most = most
        self._idle_seconds = idle_seconds
        self._job_seconds = job_seconds
        self._queue: deque[CodecJob] = deque()
        self._members: set[_Member] = set()
        self._idle: list[_Member] = []
        self._starting: dict[_Member, asyncio.Task[None]] = {}
        self._ending: set[_Member] = set()
        self._numbers = itertools.count(1)
        self._own: Arena | None = None
        self._texts: dict[int, tuple[Signature, bytes]] = {}
        self._stopped = False

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def decode(self, body: Body, done: Callable[[InferRequest | Refused], None]) -> QueuedJob:
        """Make a validated request of a body. The body's lease is the codec's from now on, and the request's then.

        Never raises: `done` is called with what went wrong.
        """
        try:
            arena = body.arena or self._scratch()
        except Unavailable as error:
            return _refused(error, body.lease, done)
        return self._add(DecodeJob(body, self._text_of(body.signature), arena, done))

    def encode(
        self,
        response: InferResponse,
        request: InferRequest,
        signature: Signature,
        accept: str,
        done: Callable[[Encoded | Refused], None],
    ) -> QueuedJob:
        """Make the body of a reply. The response's lease is the codec's from now on. Never raises, as `decode`."""
        return self._encode(response, request, signature, accept, done)

    def encode_generated(
        self, response: InferResponse, signature: Signature, done: Callable[[Encoded | Refused], None]
    ) -> QueuedJob:
        """The same for a response to `generate`."""
        return self._encode(response, InferRequest(response.model_name), signature, "identity", done, generate=True)

    def _encode(
        self,
        response: InferResponse,
        request: InferRequest,
        signature: Signature,
        accept: str,
        done: Callable[[Encoded | Refused], None],
        generate: bool = False,
    ) -> QueuedJob:
        lease = response.lease
        arena = lease.arena if lease is not None else None
        in_arena = isinstance(arena, Arena)
        try:
            target = arena if isinstance(arena, Arena) else self._scratch()
        except Unavailable as error:
            return _refused(error, lease, done)
        value = pack_response(response, request, signature, accept, in_arena, generate)
        return self._add(EncodeJob(target, value, lease, done))

    def pids(self) -> list[int]:
        """Of the processes that there are, for logs and tests."""
        return [member.process.pid for member in self._members]

    async def stop(self, timeout: float | None = None) -> None:
        """Stop the processes, by force after `timeout` seconds (None: `ProcessLimits.close`). Their jobs fail."""
        self._stopped = True
        while self._queue:
            self._queue.popleft().fail(Unavailable("Server exiting"))
        members = [*self._members, *self._ending]
        for member in members:
            if member.idle_timer is not None:
                member.idle_timer.cancel()
            member.process.close()
        await asyncio.gather(
            *(member.process.ended(self._limits.close if timeout is None else timeout) for member in members)
        )
        await asyncio.gather(*self._starting.values())
        if self._own is not None:
            self._own.close()

    # ---- processes ------------------------------------------------------------------------------------------------

    def _add(self, job: CodecJob) -> CodecJob:
        if self._stopped:
            job.fail(Unavailable("Server exiting"))
            return job
        job.on_cancel = lambda: self._drop(job)
        self._queue.append(job)
        self._pump()
        return job

    def _drop(self, job: CodecJob) -> None:
        """A job that has not begun will not; one that has is waited for."""
        with contextlib.suppress(ValueError):
            self._queue.remove(job)
            job.fail(Cancelled(""))

    def facts(self) -> list[WorkerFacts]:
        """Each process, for the status document."""
        return [WorkerFacts("codec", member.process.pid) for member in self._members]

    def _text_of(self, signature: Signature) -> bytes:
        known = self._texts.get(id(signature))
        if known is None:
            if len(self._texts) >= _REMEMBERED_SIGNATURES:
                self._texts.clear()
            known = self._texts[id(signature)] = (signature, pack_signature(signature))
        return known[1]

    def _pump(self) -> None:
        while self._queue and self._idle:
            member = self._idle.pop()
            if member.idle_timer is not None:
                member.idle_timer.cancel()
            if not member.run(self._queue.popleft(), next(self._numbers)):
                self._rest(member)
        if self._queue and not self._starting and len(self._members) < self._most:
            self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            member = _Member(self, loop, self._limits, self._job_seconds)
        except Unavailable as error:
            if not self._members:
                self._fail_waiting(error)
            return
        self._members.add(member)
        self._starting[member] = loop.create_task(self._wait_for(member), name="start a codec process")
        member.process.exited.add_done_callback(lambda exited: self._on_exit(member, exited.result()))

    async def _wait_for(self, member: _Member) -> None:
        try:
            await member.process.hello()
            member.up = True
        except ProcessLost:  # `_on_exit` sees to the rest
            pass
        finally:
            del self._starting[member]
        if member.up:
            self.free(member)
        else:
            self._pump()

    def free(self, member: _Member) -> None:
        """A process has nothing to do."""
        if member in self._members and not member.process.exited.done():
            self._rest(member)
            self._pump()

    def _rest(self, member: _Member) -> None:
        self._idle.append(member)
        loop = asyncio.get_running_loop()
        member.idle_timer = loop.call_later(self._idle_seconds, self._end, member)

    def _end(self, member: _Member) -> None:
        self._idle.remove(member)
        self._members.discard(member)
        self._ending.add(member)
        member.process.close()
        asyncio.get_running_loop().call_later(self._limits.close, member.process.kill, "did not end")

    def _on_exit(self, member: _Member, reason: str) -> None:
        """It was reaped, and does not touch the memory of its job any more."""
        self._ending.discard(member)
        if member not in self._members:
            return
        self._members.discard(member)
        if member in self._idle:
            self._idle.remove(member)
        if member.idle_timer is not None:
            member.idle_timer.cancel()
        job = member.take()
        if not self._stopped:
            log.error("codec process (pid %d) %s", member.process.pid, reason)
        if job is not None:
            job.fail(Unavailable(f"the codec process {reason} while it {job.doing}; try again"))
        if not member.up and not self._members:  # it never came up: the next request tries again
            self._fail_waiting(Unavailable(f"the codec process {reason} when it was started"))
        self._pump()

    def _fail_waiting(self, error: EdgeServeError) -> None:
        waiting = list(self._queue)
        self._queue.clear()
        for job in waiting:
            job.fail(error)

    def _scratch(self) -> Arena:
        if self._own is None:
            self._own = Arena("codec", self._budget)
        return self._own
