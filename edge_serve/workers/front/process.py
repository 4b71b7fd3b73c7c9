"""One worker process: spawned by exec, spoken to over its control channel, watched, and reported once when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from edge_serve.aio.tasks import start_task
from edge_serve.errors import Internal, Unavailable
from edge_serve.messages.line import shortened
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.tensors import Buffer
from edge_serve.records import frozen
from edge_serve.workers.front.frame_socket import GRACE, FrameSocket
from edge_serve.workers.front.output import WorkerOutput
from edge_serve.workers.launch.cgroups import ControlGroup
from edge_serve.workers.launch.interpreter import Interpreter, has_changed_code, own_interpreter
from edge_serve.workers.launch.spawn import WORKER, Spawned, spawn
from edge_serve.workers.memory.arena_exports import ArenaExports
from edge_serve.workers.memory.pages import PAGE
from edge_serve.workers.wire.frames import (
    BUSY_BEAT,
    DEVICE_LOST,
    HEADER_SIZE,
    Frame,
    FrameError,
    FrameKind,
    error_of,
    json_frame,
)

log = logging.getLogger(__name__)

#: a process's clock is its number with this (clock_getcpuclockid(3), which Python lacks; include/linux/posix-timers.h)
_CPUCLOCK_SCHED = 2
#: seconds between two reports of a slow load
_SLOW_LOAD_AGAIN = 60.0
#: seconds without a frame after which a process that loads a model counts as stopped by the load
_STOPPED = 3 * BUSY_BEAT
#: question -> its answer, which carries its number; FAILED answers any. Other frames have numbers of the worker's own
_ANSWERS = {
    FrameKind.DESCRIBE.value: FrameKind.DESCRIBED,
    FrameKind.OPEN.value: FrameKind.OPENED,
    FrameKind.CLOSE.value: FrameKind.CLOSED,
    FrameKind.HEALTH.value: FrameKind.HEALTH_REPLY,
}
_IS_ANSWER = frozenset((*_ANSWERS.values(), FrameKind.FAILED))


@frozen
class ProcessLimits:
    """How long a worker may take, in seconds.

    Attributes:
        hello: from exec to the first frame.
        load: to describe or open a model (TensorRT builds take minutes), and to warm it up.
        slow_load: after which a load that is not done is logged, and a restarted worker opens its next model, too.
        load_setting: the option that sets `load`; "" = none does, as in the server.
        close: to finalize a model, and then to end.
        silence: without a heartbeat before the interpreter counts as stuck; not while a model loads.
        hang: without an answer or another response of a batch; 0 = for ever.
        memory: bytes that each may have, where it has a control group; 0 = no limit.
    """

    hello: float = 60.0
    load: float = 600.0
    slow_load: float = 15.0
    load_setting: str = ""
    close: float = 30.0
    silence: float = 30.0
    hang: float = 0.0
    memory: int = 0


class ProcessLost(Unavailable):
    """The worker died before it answered."""


class SharedProcessLost(Internal):
    """A worker died that several models share: any of them may have ended it."""


class Process:
    """A running worker. Everything happens in callbacks on the event loop.

    Args:
        label: for log lines.
        on_frame: takes every control frame that is no answer to `ask`. When it raises, the process is killed.
        module: what the child runs.
        interpreter: with which; None = the server's own.
        spawned: one that runs already, in place of a new one.
        about: the model that it is for, as fields of log lines; None = for several.
        group: its control group, if it has one.
        recurs: it is started in place of one that died.

    Raises:
        Unavailable: the machine lets no process start now.

    Attributes:
        exports: other models' arenas that it can read.
        exited: resolves to the reason once the process is reaped; what it had written before has been read.
        pid: also after the process has ended.
        place: where in its own code a model was that loads, by the newest heartbeat; "" = none loads, or not known.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        label: str,
        limits: ProcessLimits,
        on_frame: Callable[[Frame], None],
        module: str = WORKER,
        interpreter: Interpreter | None = None,
        spawned: Spawned | None = None,
        about: Mapping[str, str] | None = None,
        group: ControlGroup | None = None,
        recurs: bool = False,
    ) -> None:
        self.label = label
        self._recurs = recurs
        self._group = group
        self._about = about
        self.exited: asyncio.Future[str] = loop.create_future()
        self._loop = loop
        self._limits = limits
        self._on_frame = on_frame
        self._reason = ""
        self._numbers = itertools.count(1)
        self.exports = ArenaExports(self.send)
        self._questions: dict[int, tuple[int, asyncio.Future[dict[str, Any]]]] = {}
        self._hello: asyncio.Future[None] = loop.create_future()
        self._loading = 0
        #: when the newest frame arrived, or a load began or ended
        self._sign = loop.time()
        #: seconds in which loads stopped all other threads
        self._stopped = 0.0
        #: the models that it was asked to load
        self._models: set[str] = set()
        #: the one among them for which it was killed; "" = it was not, or for none
        self._guilty = ""
        self.place = ""
        try:
            self._adopt(spawned or spawn(interpreter or own_interpreter(), module, limits.silence))
        except (OSError, ValueError) as error:
            if group is not None:
                group.remove()
            hint = _SPAWN_HINTS.get(getattr(error, "errno", None) or 0, "")
            raise Unavailable(f"cannot start worker {label}: {error}{hint}") from error

    def _adopt(self, spawned: Spawned) -> None:
        self._popen = spawned.popen
        self._lifetime_pipe = spawned.pipe
        self.pid = spawned.popen.pid
        with contextlib.ExitStack() as undo:
            undo.callback(spawned.kill)
            if self._group is not None:  # before it loads a model
                self._group.add(self.pid)
            assert spawned.popen.stdout is not None
            with spawned.popen.stdout as stdout:
                self._pidfd = os.pidfd_open(self.pid)
                undo.callback(os.close, self._pidfd)
                printed = os.dup(stdout.fileno())
                self.output = WorkerOutput(self._loop, printed, self.label, about=self._about, recurs=self._recurs)
            undo.pop_all()
        self._frames = FrameSocket(
            self._loop, spawned.channel, "control channel", f"worker {self.label}", self._on_control, self._broken,
            self._about,
        )  # fmt: skip
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._watch = self._loop.call_later(self._limits.silence / 4, self._check)

    async def hello(self) -> None:
        """Wait until the process has started.

        Raises:
            ProcessLost: it ended, or took too long.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._hello), self._limits.hello)
        except asyncio.TimeoutError:
            self.kill(f"it did not start within {self._limits.hello:g} s")
            raise ProcessLost(f"worker {self.label} {self._reason}") from None

    # ---- control channel ------------------------------------------------------------------------------------------

    async def ask(self, kind: int, value: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a question and wait for its answer.

        Raises:
            EdgeServeError: the worker answered FAILED.
            ProcessLost: it died.
            asyncio.TimeoutError: no answer within `timeout` seconds of its own time; the worker may still be at it.
        """
        with self._send_question(kind, value) as answer:
            end = self.time() + timeout
            while not answer.done():
                if (left := end - self.time()) <= 0:
                    raise asyncio.TimeoutError
                await asyncio.wait([answer], timeout=max(left, BUSY_BEAT))
            return answer.result()

    @contextlib.contextmanager
    def _send_question(
        self, kind: int, value: dict[str, Any], fds: Sequence[int] = ()
    ) -> Iterator[asyncio.Future[dict[str, Any]]]:
        """Send a question. Yield its answer, which is ignored after the end of the context.

        Raises:
            ProcessLost: the process has ended.
        """
        if self.exited.done():
            raise ProcessLost(f"worker {self.label} {self._reason}")
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._questions[number] = kind, future
        try:
            self.send(json_frame(kind, number, value), fds)
            yield future
        finally:
            self._questions.pop(number, None)

    async def load(
        self,
        kind: int,
        question: dict[str, Any],
        name: str,
        find_fds: Callable[[], Sequence[int]],
        goes_on: Callable[[str], bool],
    ) -> dict[str, Any]:
        """Ask the process to describe or open a model, and kill it if that takes too long.

        Args:
            find_fds: returns the descriptors that travel with the question. It is called when they are sent: while the
                process starts, a descriptor may be closed and its number used for another file.
            goes_on: called with a reason each time that the limit passes; returns whether the load goes on. The process
                is killed otherwise.

        Raises:
            EdgeServeError: the model does not load.
            SharedProcessLost: the process died, and has other models.
        """
        self._models.add(name)
        try:
            await self.hello()
            with self._send_question(kind, question, find_fds()) as answer:
                await self._await_load(answer, name)
                while not answer.done():
                    if not goes_on(reason := self._overdue_load(name)):
                        self.kill(f"was killed: {reason}", guilty=name)
                        raise Internal(reason)
                    await asyncio.wait([answer], timeout=self._limits.load)
                return answer.result()
        except ProcessLost as lost:
            words = () if self.output.crash_place() else self.output.last  # a crash prints a long stack
            said = "; its last words: " + " | ".join(words) if words else ""
            raise self.loss(name, f"{lost.message} while it loaded model '{name}'{said}") from lost

    def loss(self, name: str, text: str) -> Internal:
        """Return the error of a model that was in the process when it died."""
        known = name == self._guilty or len(self._models) == 1
        return Internal(text) if known else SharedProcessLost(text)

    async def _await_load(self, answer: asyncio.Future[dict[str, Any]], name: str) -> None:
        """Wait for the answer to a load, at most for its limit. Meanwhile the process may be silent."""
        slow = start_task(self._report_slow_load(name), f"slow load of {name}")
        self._note_sign()
        self._loading += 1
        try:
            await asyncio.wait([answer], timeout=self._limits.load)
        finally:
            self._note_sign()
            self._loading -= 1
            slow.cancel()

    def _overdue_load(self, name: str) -> str:
        """Return that a load has passed its limit, the option that sets the limit, and where the model is."""
        setting = f" ({self._limits.load_setting})" if self._limits.load_setting else ""
        place = f": it was {self.place}" if self.place else ""
        return f"model '{name}' did not load within {self._limits.load:g} s{setting}{place}"

    async def _report_slow_load(self, name: str) -> None:
        """Log again and again that a load is slow, and where the model is: it may hang, and its time limit is long."""
        started, pause = self._loop.time(), self._limits.slow_load
        while True:
            await asyncio.sleep(pause)
            place = f": it is {self.place}" if self.place else ""
            text = "model %s has been loading for %.0f s%s; its limit is %.0f s"
            log.warning(text, name, self._loop.time() - started, place, self._limits.load, extra=model_fields(name))
            pause = _SLOW_LOAD_AGAIN

    def send(self, data: Buffer, fds: Sequence[int] = ()) -> None:
        """Send a control frame, or its next part; see `FrameSocket.send`."""
        self._frames.send(data, fds)

    def _on_control(self, kind: int, count: int, frame_id: int, whole: bytes) -> None:
        self._note_sign()
        received = Frame(kind, count, frame_id, whole[HEADER_SIZE:])
        if received.kind == FrameKind.HEARTBEAT:
            self.place = shortened(str(received.json().get("place", ""))) if received.payload else ""
            return
        if received.kind == FrameKind.HELLO:
            if not self._hello.done():
                self._hello.set_result(None)
        elif received.kind not in _IS_ANSWER:
            self._on_frame(received)
        elif received.id in self._questions:  # else its caller was cancelled
            self._on_answer(received)

    def _on_answer(self, received: Frame) -> None:
        kind, future = self._questions[received.id]
        if received.kind not in (_ANSWERS[kind], FrameKind.FAILED):
            raise FrameError(f"found kind {received.kind} as the answer to kind {kind}")
        answer = received.json()
        if future.done():
            return
        if received.kind == FrameKind.FAILED:
            future.set_exception(error_of(answer))
        else:
            future.set_result(answer)

    # ---- life and death -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if (overdue := self.overdue()) > 0:
            silence = self._limits.silence + overdue
            self.kill(f"was killed: it gave no sign of life for {silence:.0f} s, its interpreter is stuck")
        self._watch = self._loop.call_later(self._limits.silence / 4, self._check)

    def overdue(self) -> float:
        """Return the seconds by which the process has been silent for too long; below 0 = it may still be silent."""
        idle = self._loading or not self._hello.done() or self.exited.done()
        return -self._limits.silence if idle else self._loop.time() - self._sign - self._limits.silence

    def time(self) -> float:
        """Return the time of this process in seconds, by which its models' time limits run. Does not count the time in
        which a load stops all other threads.

        ONNX Runtime up to 1.23 holds the GIL while it opens a session (microsoft/onnxruntime #27063). So while a model
        loads, the time is that of the newest frame: a limit has passed once a frame has arrived after it.
        """
        return (self._sign if self._loading else self._loop.time()) - self._stopped

    def _note_sign(self) -> None:
        now = self._loop.time()
        if self._loading and now - self._sign > _STOPPED:
            self._stopped += now - self._sign
        self._sign = now

    def _broken(self, reason: str, grace: float) -> None:
        self.kill(f"was killed: {reason}", grace)

    def kill(self, reason: str, grace: float = 0.0, guilty: str = "") -> None:
        """Kill the process and its children; `exited` follows. The first reason given is the one reported.

        Args:
            grace: seconds in which it may end by itself: channels of a dying process close first, and its own exit
                status tells more.
            guilty: the model that is the reason; "" = none is known.
        """
        if self.exited.done():
            return
        if grace:
            self._loop.call_later(grace, self.kill, reason, 0.0, guilty)
            return
        if not self._reason:
            self._reason, self._guilty = reason, guilty
        _kill_group(self.pid)

    def close(self) -> None:
        """Ask the process to end, by closing its control channel."""
        self._frames.hang_up()

    async def wait(self, timeout: float) -> None:
        """Wait for the end of the process. Kill it if that takes longer than `timeout` seconds."""
        try:
            await asyncio.wait_for(asyncio.shield(self.exited), timeout)
        except asyncio.TimeoutError:
            self.kill(f"was killed: it did not end within {timeout:g} s")
            await asyncio.shield(self.exited)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        _kill_group(self.pid)  # children it leaves behind; the number is ours until it is reaped
        self._lifetime_pipe.close()  # and those that have left the group
        status = self._popen.wait()
        self._reason = self._reason or (self._group.verdict() if self._group is not None else "") or exit_reason(status)
        if self._group is not None:
            self._group.kill()  # programs that have left it too
            self._group.remove()
            self._loop.call_later(GRACE, self._group.remove)  # once what was killed has left it
        self._frames.drain()
        self._watch.cancel()
        self._frames.close()
        self.exports.close()
        self.output.finish()
        if place := self.output.crash_place():
            self._reason += f" {place}"
        if status > 0 and not self._hello.done() and has_changed_code():
            self._reason += _OTHER_CODE
        lost = ProcessLost(f"worker {self.label} {self._reason}")
        waiting: list[asyncio.Future[Any]] = [self._hello, *(answer for _, answer in self._questions.values())]
        for future in waiting:
            if not future.done():
                future.set_exception(lost)
                future.exception()  # there may be no caller to get it
        self.exited.set_result(self._reason)

    def memory_bytes(self) -> int:
        """Return the resident memory, touched arena pages included; 0 after the end of the process."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process in user and kernel mode; 0 after its end."""
        try:
            return time.clock_gettime(~self.pid << 3 | _CPUCLOCK_SCHED)
        except OSError:
            return 0.0


_SPAWN_HINTS = {
    errno.EAGAIN: " (too many processes or threads: see TasksMax= of the service)",
    errno.EMFILE: " (too many files open: see LimitNOFILE= of the service)",
    errno.ENOENT: " (put it back, or load the model again with another one)",
}
_STATUS_HINTS = {DEVICE_LOST: " (its GPU is lost)"}
_OTHER_CODE = " (edge-serve's own files have changed since this server started: restart the server)"
_HINTS = {
    "SIGKILL": " (the machine may be out of memory: see the kernel's log)",
    "SIGILL": " (a library needs an instruction that this processor lacks: install a build of it for this processor)",
    "SIGBUS": " (it read a mapped file that had been made smaller: if clients use shared memory, one did that)",
}


def exit_reason(status: int) -> str:
    """Return how a process ended unexpectedly, from `Popen.returncode`."""
    if status >= 0:
        return f"ended with exit status {status}{_STATUS_HINTS.get(status, '')}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}{_HINTS.get(name, '')}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
