"""The shell between the server and its service manager: checks the server once a second, and reports its state.

Everything runs on the event loop, on purpose: a loop that is blocked feeds no watchdog. What is decided comes from pure
functions (`status_line`, `watchdog.decide`); this file reads the facts and acts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from edge_serve.aio.tasks import gathered, start_task
from edge_serve.clock import Clock
from edge_serve.messages.line import MOST_NAMES, failed_line, models_text, shortened
from edge_serve.models.control.records import ModelSummary
from edge_serve.models.control.registry import Registry
from edge_serve.service import Service
from edge_serve.supervision.safe_mode import CrashWatch
from edge_serve.supervision.watchdog import FactReader, decide, time_of
from edge_serve.systemd import notify
from edge_serve.workers.front.workers import Workers
from edge_serve.workers.launch.cgroups import find_groups

log = logging.getLogger(__name__)

#: between checks, seconds; shorter while models load, so that READY is not late
TICK, TICK_LOADING = 1.0, 0.1
#: how often the watchdog is fed within its time, at least
FEEDS = 4
#: a load that makes progress gets so much more time, and systemd hears of it so often; seconds
EXTENSION, EXTEND_EVERY = 60.0, 5.0
#: beyond the time for draining, for closing models and ending workers
STOP_EXTRA = 30.0
#: words of a status line, those that matter most to a technician first
_MOVING = ("unready", "restarting", "loading", "unloading")


class Supervisor:
    """Checks one server, and reports its state to the service manager. `run` is a task from the opening of the doors to
    the end of the process.

    Attributes:
        stalled: set when the start has made no progress for `stall_seconds`.
    """

    #: before `EXTENSION` has passed, a start without progress goes on without the models that still load
    stall_seconds = 40.0

    def __init__(
        self, service: Service, registry: Registry, workers: Workers, crashes: CrashWatch, clock: Clock
    ) -> None:
        self._service = service
        self._registry = registry
        self._workers = workers
        self._crashes = crashes
        self._clock = clock
        self._notifier = notify.Notifier(notify.quiet)
        self._started = False
        self._reloading = False
        self._stopping = False
        self._status = ""
        self._facts = FactReader(registry, workers)
        self._watchdog = 0.0
        self._hungry = ""
        #: a value that changes while models load, when it was checked last, and since when it is the same
        self._progress: object = None
        self._checked_ns = self._progress_ns = 0
        self.stalled = asyncio.Event()

    def use_service_manager(self, environ: Mapping[str, str]) -> None:
        """Send all notifications to the service manager that `environ` names (sd_notify(3)), and feed its watchdog.

        Without this call, and without a manager in `environ`, the supervisor checks the server and notifies none.
        """
        self._notifier = notify.Notifier(notify.sender(environ))
        self._watchdog = time_of(environ, os.getpid())
        self._workers.default_hang = self._watchdog
        if environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):  # systemd has started it; a shell's group is not ours
            self._workers.control_groups = find_groups()

    async def run(self) -> None:
        """Check the server once a second, until cancelled."""
        while True:
            try:
                await self.check()
            except Exception:  # one failed check must not be the last
                log.exception("a check of the service failed")
            pause = TICK if self._started else TICK_LOADING
            await asyncio.sleep(min(pause, self._watchdog / FEEDS) if self._watchdog else pause)

    async def check(self) -> None:
        """Check models, workers, and schedulers once: report changes, and feed the watchdog.

        Many models are read in pieces, so that requests are answered between them.
        """
        registry, now = self._registry, self._clock.now_ns()
        summaries = await gathered(registry.summaries())
        await asyncio.sleep(0)
        line = self._line(summaries)
        if line != self._status and not self._stopping:
            self._status = line
            self._notifier.notify(notify.status(line))
        await asyncio.sleep(0)
        if not self._started or self._reloading:
            self._check_progress(now, summaries)
        await self._feed(now)
        if self._crashes.is_open:
            await asyncio.sleep(0)
            busy = await gathered(one.name if one.runner.in_flight() else "" for one in registry.each_loaded())
            self._crashes.check(now, sorted({*busy} - {""}), started=self._service.started)

    async def notify_ready(self) -> None:
        """Send READY=1, because the models of the start are loaded, failed to load, or make no progress.

        Required models that failed do not delay it: systemd would restart the server for ever, with its other models.
        """
        line = self._line(await gathered(self._registry.summaries()))
        if self._stopping:
            return
        self._started = True
        self._status = line
        if self._registry.unready_required():
            log.error("the server is live and not ready: %s", line)
        self._notifier.notify(notify.ready(line, os.getpid()))

    # ---- start, reload, and stop of the server ------------------------------------------------------------------

    def notify_reloading(self) -> None:
        """Send RELOADING=1, because SIGHUP starts a scan for changes. Until READY=1 was sent, do nothing: the scan is a
        part of the start."""
        if not self._started:
            return
        self._reloading = True
        self._progress = None
        self._notifier.notify(notify.reloading(self._clock.now_ns()))

    def notify_reloaded(self) -> None:
        """Send READY=1 after `notify_reloading`, because the changes are loaded, or failed to load."""
        if self._reloading:
            self._reloading = False
            start_task(self._notify_ready_again(), "end of a reload")

    async def _notify_ready_again(self) -> None:
        line = self._line(await gathered(self._registry.summaries()))
        if not self._stopping:
            self._notifier.notify(notify.ready(line, os.getpid()))

    def notify_stopping(self, seconds: float) -> None:
        """Send STOPPING=1, because the server drains for at most `seconds`, and record a clean stop."""
        if not self._stopping:
            self._stopping = True
            self._crashes.record_clean_stop()  # a kill during the stop is no crash
            self._notifier.notify(notify.stopping(f"answering the requests that it has, at most {seconds:g} s"))
            self._notifier.notify(notify.extend(seconds + STOP_EXTRA))

    def notify_stop_progress(self, text: str) -> None:
        """Send one line about the requests and models that the stop waits for."""
        self._notifier.notify(notify.status(text))

    def notify_failed(self, text: str, errno: int | None = None) -> None:
        """Send the reason for which the process ends with an error. Failed loads count for safe mode.

        Args:
            errno: of the system call that failed; None = another error.
        """
        self._stopping = True
        failed = sorted(self._registry.load_history.failed)
        if failed and errno is None:
            self._crashes.record_failed_load(failed)
        self._notifier.notify(notify.failed(text, errno))

    @property
    def safe_mode(self) -> str:
        """Why models are left out; "" = none is."""
        left_out = self._registry.load_history.left_out
        return f"{_group('left out', sorted(left_out), ', ')}, {next(iter(left_out.values()))}" if left_out else ""

    # ---- inside -------------------------------------------------------------------------------------------------

    def _line(self, summaries: Sequence[ModelSummary]) -> str:
        registry = self._registry
        return status_line(
            summaries, loaded=self._service.started, safe=self.safe_mode, unreadable=registry.load_history.unreadable,
            lacking=registry.unready_required(),
        )  # fmt: skip

    async def _feed(self, now: int) -> None:
        """Check workers and schedulers, also without a watchdog: a worker that hangs is killed here."""
        trouble = decide(*await self._facts.read(now))
        reason = trouble.reason if trouble is not None else ""
        if reason and reason != self._hungry:
            log.critical("the watchdog is not fed: %s", reason)
        self._hungry = reason
        if not self._watchdog:
            return
        if trouble is None:
            self._notifier.notify(notify.watchdog())
        elif trouble.hopeless:
            self._notifier.notify(notify.trigger(reason))

    def _check_progress(self, now: int, summaries: Sequence[ModelSummary]) -> None:
        """Request more time for a start or reload that makes progress: a model was loaded, a worker computes, or an
        environment is prepared.

        systemd would end a start that makes none, and begin it again without end, with the models that are ready.
        """
        if now - self._checked_ns < EXTEND_EVERY * 1e9:
            return
        self._checked_ns = now
        done = sum(one.word != "loading" for one in summaries)
        builds = tuple(one.reason for one in summaries if one.word == "loading")
        preparing = now if self._workers.preparing else 0
        progress = (done, self._workers.workers(), round(self._workers.cpu_seconds(), 1), builds, preparing)
        if progress != self._progress:
            self._progress, self._progress_ns = progress, now
            self._notifier.notify(notify.extend(EXTENSION))
        elif not self._started and now - self._progress_ns >= self.stall_seconds * 1e9:
            self.stalled.set()


def status_line(
    summaries: Sequence[ModelSummary],
    *,
    loaded: bool,
    safe: str = "",
    unreadable: str = "",
    lacking: Sequence[ModelSummary] = (),
) -> str:
    """Return the state of the models as one line, for a technician.

    Such as `3 of 5 models ready, loading det` or `1 model failed: seg (no such file); 2 serve, loading det`.

    Args:
        loaded: the models of the start are loaded, or failed to.
        safe: why the server runs without some or all of its models; "" = it does not.
        unreadable: why the model repositories cannot be read; "" = they can.
        lacking: required models that are not ready; reported once the models of the start are loaded.
    """
    counted = [one for one in summaries if one.word != "unloaded"]
    troubled = [one for one in counted if one.word != "ready"]
    serving = len(counted) - sum(not one.serves for one in troubled)
    required = {one.name: one.reason for one in lacking if loaded and not safe and one.reason}
    failed = {one.name: one.reason for one in troubled if one.word == "failed"}
    moving = {one.name: f"{one.name} ({one.reason})" for one in troubled if one.word == "loading" and one.reason}
    groups = [_group(word, [moving.get(one.name, one.name) for one in troubled if one.word == word])
              for word in _MOVING]  # fmt: skip
    if failed:
        head = failed_line(failed, required, serving)
    elif not loaded and not counted:
        head = "looking for models"
    elif serving < len(counted):
        head = f"{serving} of {models_text(len(counted))} ready"
    else:
        head = f"{models_text(serving)} ready"
    notes = [f"required {name}: {shortened(reason)}" for name, reason in required.items() if name not in failed]
    if len(notes) > MOST_NAMES:
        notes[MOST_NAMES:] = [f"and {len(notes) - MOST_NAMES} more"]
    if unreadable:
        notes.insert(0, shortened(unreadable))
    text = "; ".join([", ".join([head, *filter(None, groups)]), *notes])
    return f"safe mode: {safe}; {text}" if safe else text


def _group(word: str, names: Sequence[str], between: str = " ") -> str:
    if not names:
        return ""
    shown = between.join(names[:MOST_NAMES])
    return f"{word} {shown}" + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
