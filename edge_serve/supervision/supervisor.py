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
from edge_serve.workers.front.pool import Workers
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
    """Tells the service manager of one server. `run` is a task from the opening of the doors to the end."""

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
        #: a value that changes while models load, and when it was checked last
        self._progress: object = None
        self._extended_ns = 0

    def obey(self, environ: Mapping[str, str]) -> None:
        """This process is the service: speak to the manager that `environ` names, if it names one."""
        self._notifier = notify.Notifier(notify.sender(environ))
        self._watchdog = time_of(environ, os.getpid())
        self._workers.default_hang = self._watchdog
        if environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):  # systemd has started it; a shell's group is not ours
            self._workers.control_groups = find_groups()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # one bad look must not be the last
                log.exception("looking after the service failed")
            pause = TICK if self._started else TICK_LOADING
            await asyncio.sleep(min(pause, self._watchdog / FEEDS) if self._watchdog else pause)

    async def look(self) -> None:
        """Report what has changed. Models are checked in pieces."""
        registry, now = self._registry, self._clock.now_ns()
        summaries = await gathered(registry.summaries())
        await asyncio.sleep(0)
        if not self._stopping:
            self._notify_state(self._line(summaries))
        await asyncio.sleep(0)
        if not self._started or self._reloading:
            self._extend(now, summaries)
        await self._feed(now)
        if self._crashes.keeps:
            await asyncio.sleep(0)
            busy = await gathered(one.name if one.runner.in_flight() else "" for one in registry.each_served())
            self._crashes.look(now, sorted({*busy} - {""}), started=self._service.started)

    async def start_ends(self) -> None:
        """READY=1: the models of the start are loaded, or failed to. A start that waited for a required model which
        cannot load would be restarted for ever, and the other models with it."""
        line = self._line(await gathered(self._registry.summaries()))
        if self._stopping:
            return
        self._started = True
        self._status = line
        if self._registry.unready_required():
            log.error("the server is live and not ready: %s", line)
        self._notifier.notify(notify.ready(line, os.getpid()))

    # ---- what happens to the server -----------------------------------------------------------------------------

    def reload_begins(self) -> None:
        """SIGHUP: changes of the models are looked for. While the service starts that is a part of the start."""
        if not self._started:
            return
        self._reloading = True
        self._progress = None
        self._notifier.notify(notify.reloading(self._clock.now_ns()))

    def reload_ends(self) -> None:
        """Report the end of a reload: the changes are loaded, or failed to load."""
        if self._reloading:
            self._reloading = False
            start_task(self._notify_reloaded(), "end of a reload")

    async def _notify_reloaded(self) -> None:
        line = self._line(await gathered(self._registry.summaries()))
        self._notifier.notify(notify.ready(line, os.getpid()))

    def stop_begins(self, seconds: float) -> None:
        """The server drains, for at most `seconds`."""
        if not self._stopping:
            self._stopping = True
            self._crashes.end()  # a kill during the stop is no crash
            self._notifier.notify(notify.stopping(f"answering the requests that it has, at most {seconds:g} s"))
            self._notifier.notify(notify.extend(seconds + STOP_EXTRA))

    def stop_waits(self, text: str) -> None:
        """Report what the stop in progress waits for, in one line."""
        self._notifier.notify(notify.status(text))

    def fails(self, text: str, errno: int | None = None) -> None:
        """The process ends because of `text`."""
        self._stopping = True
        failed = sorted(self._registry.load_history.failed)
        if failed and errno is None:
            self._crashes.fail(failed)
        self._notifier.notify(notify.failed(text, errno))

    @property
    def safe_mode(self) -> str:
        """Why models are left out; "" = none is."""
        left_out = self._registry.load_history.left_out
        return f"left out {', '.join(sorted(left_out))}, {next(iter(left_out.values()))}" if left_out else ""

    # ---- inside -------------------------------------------------------------------------------------------------

    def _line(self, summaries: Sequence[ModelSummary]) -> str:
        registry = self._registry
        return status_line(
            summaries, loaded=self._service.started, safe=self.safe_mode, unreadable=registry.load_history.unreadable,
            lacking=registry.unready_required(), unread=registry.unread(),
        )  # fmt: skip

    def _notify_state(self, line: str) -> None:
        if line != self._status:
            self._status = line
            self._notifier.notify(notify.status(line))

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

    def _extend(self, now: int, summaries: Sequence[ModelSummary]) -> None:
        """More time for loads that move: a model more is there, or a worker computes."""
        if now - self._extended_ns < EXTEND_EVERY * 1e9:
            return
        self._extended_ns = now
        done = sum(one.word != "loading" for one in summaries)
        builds = tuple(one.reason for one in summaries if one.word == "loading")
        progress = (done, self._workers.workers(), round(self._workers.cpu_seconds(), 1), builds)
        if progress != self._progress:
            self._progress = progress
            self._notifier.notify(notify.extend(EXTENSION))


def status_line(
    summaries: Sequence[ModelSummary],
    *,
    loaded: bool,
    safe: str = "",
    unreadable: str = "",
    lacking: Sequence[ModelSummary] = (),
    unread: Mapping[str, str] | None = None,
) -> str:
    """`3 of 5 models ready, loading det`; `1 model failed: seg (no such file); 2 serve, loading det`

    Args:
        loaded: the models of the start are loaded, or failed to.
        safe: why the server runs without some or all of its models; "" = it does not.
        unreadable: why the model repositories cannot be read; "" = they can.
        lacking: required models that are not ready; reported once the models of the start are loaded.
        unread: models of the repository that could not be read, and why: they failed, too.
    """
    counted = [one for one in summaries if one.word != "unloaded"]
    troubled = [one for one in counted if one.word != "ready"]
    serving = len(counted) - sum(not one.serves for one in troubled)
    required = {one.name: one.reason for one in lacking if loaded and not safe and one.reason}
    failed = {one.name: one.reason for one in troubled if one.word == "failed"}
    failed |= {name: reason for name, reason in (unread or {}).items() if name not in failed}
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


def _group(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = " ".join(names[:MOST_NAMES])
    return f"{word} {shown}" + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
