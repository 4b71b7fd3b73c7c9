"""A worker that lives on: holds models, is started again when its process dies, and opens them again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edge_serve.aio.tasks import notify, start_task
from edge_serve.backends.base import ModelSpec
from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.log_fields import RECURS, model_fields
from edge_serve.messages.status import WorkerFacts
from edge_serve.workers.front.bls_broker import BlsBroker, Caller, Hooks
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.hangs import HangWatch
from edge_serve.workers.front.link import ModelListener
from edge_serve.workers.front.output import ModelLog
from edge_serve.workers.front.placement import (
    InstanceRecord,
    ModelPlacement,
    as_json,
    lost_text,
    open_question,
    seats_in,
    socket_pairs,
)
from edge_serve.workers.front.process import Process, ProcessLimits, ProcessLost
from edge_serve.workers.front.restart import LONGEST_WITHOUT_GPU, RestartPolicy, await_gpus
from edge_serve.workers.launch.cgroups import ControlGroup
from edge_serve.workers.launch.interpreter import Environment
from edge_serve.workers.launch.spawn import Spawned
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, json_frame

log = logging.getLogger(__name__)

#: seconds between attempts to open a model again that refuses to
_REOPEN_FIRST, _REOPEN_LONGEST = 0.25, 5.0
#: how long the index tells of a worker that died
_NEWS_SECONDS = 60.0
_NO_PROCESS = "its worker is started again"
_HANGS_BESIDE = "its worker is not killed, because other models serve there: unload the model and load it again"


class Worker:
    """One worker over all its processes.

    Args:
        in_main: models load and their first instance runs in the process's main thread.
        environment: what its processes run with, released by its owner.
        about: the one model that it is for, as fields of log lines; None = for several.
        group: makes a control group for its next process; None = there are none.
        spawned: its first process, which runs already; None = it is to be started.

    Attributes:
        restarts: how often a process was started in place of one that died.
        claims: how many loads and models need it; its owner ends it when there are none.
        process: the present one; after its end, until the next one starts, the last one.
    """

    def __init__(
        self,
        label: str,
        in_main: bool,
        limits: ProcessLimits,
        clock: Clock,
        hooks: Hooks,
        environment: Environment,
        about: Mapping[str, str] | None,
        group: Callable[[str], ControlGroup] | None,
        spawned: Spawned | None,
    ) -> None:
        self.label = label
        self._about = about
        self.environment = environment
        self.restarts = 0
        self.claims = 0
        self._in_main = in_main
        self._group = group
        #: when the last process was lost, and why; 0 = none was
        self._loss: tuple[int, str] = 0, ""
        #: why no process can be started in its place; "" = one was, or none is due
        self._refusal = ""
        self._limits = limits
        self._clock = clock
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._policy = RestartPolicy()
        self._placements: list[ModelPlacement] = []
        #: placements that open for the first time, which may call other models before their answer to OPEN is read
        self._opening: list[ModelPlacement] = []
        #: models among them; 0 = to be counted
        self._shares = 0
        self._turning: set[str] = set()
        self._awaited: set[str] = set()
        #: directory of the model that loads now; of several, the last one
        self._loading: Path | None = None
        self._numbers = itertools.count(1)
        self._stopping = False
        self._log = ModelLog(self._loop, label, about)
        self._wake = asyncio.Event()
        self._hangs = HangWatch()
        self._reopening: set[asyncio.Task[None]] = set()
        self.process = self._new_process(spawned)
        self._supervisor = start_task(self._supervise(), f"worker {label}")

    @property
    def gone(self) -> bool:
        """Whether the last process has ended and none will be started."""
        return self._supervisor.done()

    def trouble(self) -> str:
        """Return why it has no process, or how its last one ended, within a minute; "" = neither."""
        if self._refusal:
            return self._refusal
        lost_ns, reason = self._loss
        is_news = lost_ns and self._clock.now_ns() - lost_ns < _NEWS_SECONDS * 1e9
        return f"worker {self.label} {reason}" if is_news else ""

    def facts(self) -> WorkerFacts:
        """Return the facts about this worker for the status document."""
        models = sorted({(one.spec.name, str(one.spec.version)) for one in self._placements})
        return WorkerFacts(self.label, self.process.pid, self.restarts, tuple(models), self.process.exited.done())

    def watch(self, hang: float) -> float:
        """Kill the process when one of its models hangs. Return the seconds since its end was due, for any reason.

        Args:
            hang: limit of models without one of their own; 0 = none.
        """
        process = self.process
        now_ns, callers = int(process.time() * 1e9), self._broker.callers()
        found = self._hangs.find(now_ns, self._placements, hang, self._limits.load, callers)
        if found is not None:
            process.kill(f"was killed: {found.text(self._limits.load_setting)}", guilty=found.model)
        return max(process.overdue(), found.overdue if found is not None else 0.0)

    def shares(self) -> int:
        """Return the number of models in this worker."""
        if not self._shares:
            self._shares = max(1, len({one.link.arena for one in self._placements}))
        return self._shares

    def _new_process(self, spawned: Spawned | None = None) -> Process:
        group = self._group(self.label) if self._group is not None else None
        process = Process(
            self._loop,
            self.label,
            self._limits,
            self._on_frame,
            interpreter=self.environment.interpreter,
            spawned=spawned,
            about=self._about,
            group=group,
            recurs=bool(self._loss[0]),
        )
        self._broker = BlsBroker(process.send, self._caller, self._hooks, self._turning, self._awaited)
        return process

    def _caller(self, number: int) -> Caller | None:
        """Return the placement with this number, for its broker; None = it is being closed."""
        placement = next((one for one in (*self._placements, *self._opening) if one.number == number), None)
        if placement is None:
            return None
        return Caller(placement.link.arena, placement.link.listener, placement.channels())

    # ---- models ---------------------------------------------------------------------------------------------------

    async def describe(self, spec: ModelSpec, backend: str) -> dict[str, Any]:
        """Return the configuration that the model has completed.

        Raises:
            EdgeServeError: why there is none.
        """
        question = {"spec": as_json(spec), "backend": backend, "in_main": self._in_main}
        with self._awaiting(spec.name):
            answer = await self._load(FrameKind.DESCRIBE, question, spec)
        config = answer.get("config")
        if not isinstance(config, dict):
            raise self._broke(spec.name, f"found {type(config).__name__}, expected a configuration")
        return config

    def discard_described(self, spec: ModelSpec) -> None:
        """Let the process close the backend of a model that was described and will not be opened."""
        if not self.process.exited.done():
            value = {"version_directory": str(spec.version_directory)}
            self.process.send(json_frame(FrameKind.DISCARD, 0, value))

    def _broke(self, model: str, found: str) -> Internal:
        """Kill the process because it broke the protocol. Return the error for a model that it loads."""
        self.process.kill(f"was killed: it broke the protocol: {found}", guilty=model)
        return Internal(f"the worker of model '{model}' was killed: it broke the protocol: {found}")

    async def open(self, placement: ModelPlacement) -> None:
        """Open a placement of a model here; from then on it is opened again after each restart.

        Raises:
            EdgeServeError: the model does not load.
        """
        self._opening.append(placement)
        try:
            with self._awaiting(placement.spec.name):
                await self._open(placement)
        finally:
            self._opening.remove(placement)
        self._placements.append(placement)
        self._shares = 0

    @contextlib.contextmanager
    def _awaiting(self, name: str) -> Iterator[None]:
        """Mark a model as one that a load waits for; see `BlsBroker`."""
        self._awaited.add(name)
        try:
            yield
        finally:
            self._awaited.discard(name)

    async def _open(self, placement: ModelPlacement) -> None:
        process = self.process
        placement.number = next(self._numbers)
        instances = placement.remove_closing()
        pairs = socket_pairs(len(instances))
        numbers = [next(self._numbers) for _ in instances]
        question = open_question(placement, instances, numbers, self._in_main)

        def find_fds() -> list[int]:
            if placement.link.arena.fd < 0:
                raise Internal(f"model '{placement.spec.name}' is closed")
            return [placement.link.arena.fd, *(theirs.fileno() for _, theirs in pairs)]

        try:
            answer = await self._load(
                FrameKind.OPEN, question, placement.spec, find_fds, partial(self._goes_on, placement)
            )
            if process.exited.done():
                text = f"worker {self.label} died just after it had loaded model '{placement.spec.name}'"
                raise process.loss(placement.spec.name, text)
            seats = seats_in(answer, len(numbers))
            if seats is None:
                raise self._broke(placement.spec.name, "found other seats than a number for each instance")
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()

        placement.link.layout.writes = answer.get("writes", False) is True

        def broken(reason: str, grace: float) -> None:
            process.kill(f"was killed: model '{placement.spec.name}': {reason}", grace, placement.spec.name)

        for one, number, (ours, _), taken in zip(instances, numbers, pairs, seats, strict=True):
            one.channel = Channel(
                self._loop, ours, number, one.number, placement.link, process.send, broken, process.exports, taken,
                process.time,
            )  # fmt: skip
            if len(numbers) == 1 and self._in_main:
                one.channel.on_abandoned = self._broker.abandoned
        placement.is_open = True

    async def _load(
        self,
        kind: int,
        question: dict[str, Any],
        spec: ModelSpec,
        find_fds: Callable[[], Sequence[int]] = tuple,
        goes_on: Callable[[str], bool] = lambda reason: False,
    ) -> dict[str, Any]:
        self._turning.add(spec.name)
        self._loading = spec.model_directory
        process = self.process
        try:
            return await process.load(kind, question, spec.name, find_fds, goes_on)
        except asyncio.CancelledError:
            if not self._placements:  # the server stops: no caller needs the result
                process.kill(f"was ended: the load of model '{spec.name}' was called off")
            raise
        finally:
            self._turning.discard(spec.name)
            self._loading = None

    def stop_loading(self, model_directory: Path, reason: str) -> None:
        """Kill the process if a version of this model loads in it, and no other model is there. A version that was
        unloaded while it hung in its load has no claim any more."""
        if self._loading == model_directory and self.claims == 1 and not self._serves():
            self.process.kill(f"was killed while it loaded a model: {reason}")

    def _serves(self, but: ModelPlacement | None = None) -> bool:
        """Return whether the process has a model that is open.

        Args:
            but: a placement of the one model that does not count.
        """
        return any(one.is_open and (but is None or one.link.arena is not but.link.arena) for one in self._placements)

    async def refusal(self, placement: ModelPlacement, timeout: float) -> str:
        """Ask the model whether it is ready. Return why it is not; "" = it is.

        Args:
            timeout: seconds within which it must answer.
        """
        if not placement.is_open or self.process.exited.done():
            return _NO_PROCESS
        try:
            answer = await self.process.ask(FrameKind.HEALTH, {"model": placement.number}, timeout)
        except ProcessLost:
            return _NO_PROCESS
        except EdgeServeError as error:
            return f"it cannot be asked whether it is ready: {error.message}"
        except asyncio.TimeoutError:
            return f"its worker did not answer within {timeout:g} s whether it is ready"
        return "" if answer.get("ready") is True else "its own is_ready() does not return True"

    async def close(self, placement: ModelPlacement) -> None:
        """Finalize the model, and release its slots. A worker that takes too long is killed."""
        process = self.process
        if placement in self._placements:
            self._placements.remove(placement)
            self._shares = 0
        broker = self._broker
        broker.hang_up(placement.number)
        for channel in placement.channels():
            channel.hang_up()
        self._turning.add(placement.spec.name)
        try:
            if placement.is_open:
                await self._ask_to_close(process, placement, {"model": placement.number})
        finally:
            for _, channel in placement.take_channels():
                channel.close()
            broker.release_slots(placement.number)
            self._turning.discard(placement.spec.name)

    async def _ask_to_close(
        self, process: Process, placement: ModelPlacement, question: dict[str, Any], prefix: str = ""
    ) -> None:
        """Wait until a model, or one instance of it, is finalized, or the process has ended."""
        name = placement.spec.name
        try:
            await process.ask(FrameKind.CLOSE, question, self._limits.close)
        except asyncio.TimeoutError:
            process.kill(f"was killed: {prefix}model '{name}' did not close within {self._limits.close:g} s")
            await asyncio.shield(process.exited)
        except EdgeServeError as error:
            extra = model_fields(name, placement.spec.version)
            log.warning("%smodel %s did not close cleanly: %s", prefix, name, error.message, extra=extra)
            if isinstance(error, ProcessLost):
                await asyncio.shield(process.exited)

    async def close_instance(self, placement: ModelPlacement, instance: int) -> None:
        """Finalize one of several instances of a placement, which goes on without it.

        While the worker is away, this returns at once: the placement is opened again without the instance. If the
        worker opens it now, it is finalized after that.
        """
        one = placement.instances[instance]
        one.closing = True
        if one.channel is not None:
            await self._finalize(self.process, placement, one, one.channel)

    async def _finalize(
        self, process: Process, placement: ModelPlacement, one: InstanceRecord, channel: Channel
    ) -> None:
        channel.hang_up()
        question = {"model": placement.number, "channel": channel.number}
        try:
            await self._ask_to_close(process, placement, question, "an instance of ")
        finally:
            placement.instances.pop(one.number, None)
            channel.close()

    async def stop(self, timeout: float | None = None) -> None:
        """Stop the process for good.

        Args:
            timeout: seconds after which it is killed; None = `ProcessLimits.close`.
        """
        self._stopping = True
        self._wake.set()
        self.process.close()
        await self.process.wait(self._limits.close if timeout is None else timeout)
        for task in list(self._reopening):
            task.cancel()
        await asyncio.wait([self._supervisor])
        self._hooks.gone(self)

    # ---- restarts -------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Replace each process that ends, until no model needs one. An error here costs the models a restart, because
        none may stay ready in a worker without a supervisor."""
        while True:
            try:
                if not await self._replace_process():
                    return
                await self._revive(self.process)
            except Exception as error:
                text = f"the supervisor of worker {self.label} failed: {type(error).__name__}: {error}"
                if text != self._refusal:
                    self._refusal = text
                    log.exception("%s; next attempts every %g s", text, _REOPEN_LONGEST, extra=self._about)
                self.process.kill(f"was killed: its supervisor failed: {type(error).__name__}: {error}")
                self._fail_batches(await asyncio.shield(self.process.exited))
                await self._pause(_REOPEN_LONGEST)
                if self._stopping:
                    return

    async def _replace_process(self) -> bool:
        """Wait for the end of the process, and start another. Return False when no model needs one any more."""
        reason = await asyncio.shield(self.process.exited)
        self._loss = now_ns, _ = self._clock.now_ns(), reason
        specs = [one.spec for placement in self._placements for one in placement.serving()]
        gpus = {spec.device_id for spec in specs if spec.kind == "GPU"}
        delay = self._policy.crashed(now_ns, int(LONGEST_WITHOUT_GPU * 1e9) if gpus else 0) / 1e9
        if not self._stopping:
            log.error("worker %s (pid %d) %s%s", self.label, self.process.pid, reason,
                      f"; next start in {delay:g} s" if delay and self._placements else "",
                      extra=self._about)  # fmt: skip
        self._fail_batches(reason)
        if gpus and self._hooks.gpu_trouble is not None:
            await await_gpus(partial(self._hooks.gpu_trouble, gpus), self._wake, self._report_trouble)
            self._refusal = ""
        if delay:
            await self._pause(delay)
        return await self._restart()

    def _report_trouble(self, trouble: str) -> None:
        """Log why GPUs are not found, or that they are."""
        self._refusal = trouble
        if not trouble:
            log.info("the driver finds the GPUs of worker %s again", self.label, extra=self._about)
            return
        text = "worker %s is not started: %s; the driver is asked again, at least every %g s"
        log.error(text, self.label, trouble, LONGEST_WITHOUT_GPU, extra=self._about)

    async def _restart(self) -> bool:
        """Start a new process, however often the machine refuses. Return False when no model needs one any more."""
        while self._placements and not self._stopping:
            try:
                self.process = self._new_process()
            except EdgeServeError as error:
                if error.message != self._refusal:  # one line for each reason, not for each attempt
                    self._refusal = error.message
                    log.error("%s; next attempts every %g s", error.message, _REOPEN_LONGEST, extra=self._about)
                await self._pause(_REOPEN_LONGEST)
            else:
                self._refusal = ""
                self.restarts += 1
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        """Sleep, at most until the worker is stopped. A caller in a loop must then leave it: no pause follows."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    def _fail_batches(self, reason: str) -> None:
        """Fail the batches of a process that was reaped, and release its slots. An error in one step is logged, and the
        next ones follow: every batch is answered."""
        lost = [(placement, placement.take_channels()) for placement in self._placements]
        notify(self._broker.hang_up)
        notify(self._broker.release_slots)
        errors: dict[ModelListener, dict[int, EdgeServeError]] = {}
        for placement, taken in lost:
            for _, channel in taken:
                notify(channel.drain)
            for one, channel in taken:
                notify(channel.close)
                if not one.closing:
                    text = lost_text(placement.spec.is_python, one.spec.name, reason)
                    error = self.process.loss(placement.spec.name, text)
                    errors.setdefault(placement.link.listener, {})[one.number] = error
        for listener, by_instance in errors.items():
            notify(listener.on_lost, by_instance)

    async def _revive(self, process: Process) -> None:
        """Open the models again one after the other, for the least memory. One that loads slowly or hangs delays the
        others by `ProcessLimits.slow_load` only."""
        models: dict[Arena, list[ModelPlacement]] = {}
        for placement in self._placements:
            models.setdefault(placement.link.arena, []).append(placement)
        tasks = []
        for placements in models.values():
            tasks.append(self._start_reopening(self._reopen_model(placements, process), placements[0].spec.name))
            await asyncio.wait(tasks[-1:], timeout=self._limits.slow_load)
        if not process.exited.done():
            self._policy.started(self._clock.now_ns())
        await asyncio.gather(*tasks, return_exceptions=True)  # `start_task` logs them

    async def _reopen_model(self, placements: Sequence[ModelPlacement], process: Process) -> None:
        for placement in placements:  # one at a time: those that were added later share what the first one loads
            if process.exited.done() or placement not in self._placements:
                continue
            if not await self._reopen(placement, process) and not process.exited.done():
                self._start_reopening(self._retry_opening(placement, process), placement.spec.name)

    def _start_reopening(self, reopening: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = start_task(reopening, f"reopen {name}")
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)
        return task

    async def _reopen(self, placement: ModelPlacement, process: Process) -> bool:
        """Open a placement again. Return False if the model refuses; True also if it was closed meanwhile."""
        extra = model_fields(placement.spec.name, placement.spec.version)
        try:
            await self._open(placement)
        except Exception as error:
            if placement not in self._placements:  # closed meanwhile
                return True
            text, trace = "model %s does not open in its restarted worker: %s", not isinstance(error, EdgeServeError)
            log.error(text, placement.spec.name, error, exc_info=trace, extra=extra)
            return False
        finally:
            placement.trouble = ""
        if placement not in self._placements:  # closed meanwhile
            await self.close(placement)
            return True
        log.info("model %s is back in worker %s (pid %d)", placement.spec.name, self.label, process.pid,
                 extra={**extra, RECURS: "1"})  # fmt: skip
        for one in placement.serving():
            notify(placement.link.listener.on_back, one.number)
        removed = [
            (one, one.channel) for one in placement.instances.values() if one.closing and one.channel is not None
        ]
        await asyncio.gather(*(self._finalize(process, placement, *one) for one in removed))
        return True

    def _goes_on(self, placement: ModelPlacement, reason: str) -> bool:
        """Return whether a placement goes on opening after the limit of a load, and report that. The process is killed
        otherwise, which would cost other models that were opened again another restart, after each limit.

        Args:
            reason: text about the limit.
        """
        if placement in self._opening:  # the caller waits for the error
            return False
        if placement not in self._placements:  # closed meanwhile
            return True
        if not self._serves(but=placement):
            return False
        if not placement.trouble:
            placement.trouble = f"{reason}; {_HANGS_BESIDE}"
            log.error("%s", placement.trouble, extra=model_fields(placement.spec.name, placement.spec.version))
        return True

    async def _retry_opening(self, placement: ModelPlacement, process: Process) -> None:
        delay = _REOPEN_FIRST
        while True:
            await asyncio.wait([process.exited], timeout=delay)
            if process.exited.done() or self._stopping or placement not in self._placements:
                return
            if await self._reopen(placement, process):
                return
            delay = min(2 * delay, _REOPEN_LONGEST)

    # ---- what the worker says -------------------------------------------------------------------------------------

    def _on_frame(self, received: Frame) -> None:
        if received.kind == FrameKind.LOG:
            self._log.write(received.json(), self._placements)
        elif received.kind == FrameKind.METRIC:
            self._hooks.metric(received.json(), self)
        elif not self._broker.on_frame(received):
            raise FrameError(f"found kind {received.kind} on a control channel")
