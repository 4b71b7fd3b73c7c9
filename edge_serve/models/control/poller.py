"""Follows the model repositories: at intervals (`--model-control-mode=poll`), on SIGHUP, on a reload request, and while
they could not be read yet.

A change counts once it has stayed the same for a while, so that a half-copied model is not loaded. A complete directory
that was renamed into place counts at once, and so does a removal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from edge_serve.aio.offload import offload
from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.control.registry import Registry
from edge_serve.models.repository.repository import Repository, Snapshot, plain_name
from edge_serve.records import frozen


@frozen
class Changes:
    """The decision after a scan.

    Attributes:
        unread: models that have not changed, and that their last load could not read.
        again: when to scan again for a change that is too recent to count, seconds; None = there is none.
        changed: those of `load` that an earlier scan has found, too. The others may only have become readable.
    """

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    again: float | None = None
    changed: tuple[str, ...] = ()


class Watch:
    """Compares each scan with the state in which each model was last loaded.

    Args:
        began: the repositories' models when the server starts to load them.
    """

    def __init__(self, began: Mapping[str, Snapshot]) -> None:
        #: model -> its snapshot at the last load or attempt
        self._acted = dict(began)
        #: model -> its snapshot at the last scan, and since when it is the same
        self._changing: dict[str, tuple[Snapshot, float]] = {}

    def compare(
        self, found: Mapping[str, Snapshot], now: float, settle: float, unreadable: Collection[str] = ()
    ) -> Changes:
        """Compare a scan (`found`, taken at `now`). Changes count once they are `settle` seconds old.

        Models of `unreadable` that were not found stay as they are. Those that were found can be tried again.
        """
        load, known = [], set(self._acted)
        self._changing = {
            name: self._seen(name, model, now) for name, model in found.items() if model != self._acted.get(name)
        }
        for name, (model, since) in list(self._changing.items()):
            if now - since >= settle or came_at_once(self._acted.get(name), model):
                del self._changing[name]
                self._acted[name] = model
                load.append(name)
        unload = [name for name in self._acted if name not in found and name not in unreadable]
        for name in unload:
            del self._acted[name]
        unread = found.keys() & set(unreadable) - self._changing.keys() - set(load)
        again = min((since + settle for _, since in self._changing.values()), default=None)
        return Changes(
            tuple(sorted(load)),
            tuple(sorted(unload)),
            tuple(sorted(unread)),
            again,
            tuple(sorted(known.intersection(load))),
        )

    def find_known(self, found: Mapping[str, Snapshot], name: str) -> list[str]:
        """Return the models that `name` means, among those of a scan and those that were loaded before: with
        namespaces, the models of this name in all repositories."""
        return [one for one in {**found, **self._acted} if name in (one, plain_name(one))]

    def take(self, found: Mapping[str, Snapshot], names: Collection[str], unreadable: Collection[str] = ()) -> Changes:
        """Count every change of `names` as complete, however recent it is.

        Models that are `unreadable` now stay as they are.
        """
        load = [name for name in names if name in found and found[name] != self._acted.get(name)]
        unload = [name for name in names if name not in found and name in self._acted and name not in unreadable]
        for name in load:
            self._acted[name] = found[name]
            self._changing.pop(name, None)
        for name in unload:
            del self._acted[name]
        return Changes(tuple(load), tuple(unload))

    def _seen(self, name: str, model: Snapshot, now: float) -> tuple[Snapshot, float]:
        last = self._changing.get(name)
        return last if last is not None and last[0] == model else (model, now)


def came_at_once(before: Snapshot | None, now: Snapshot) -> bool:
    """Return whether no part of the change can be half done: whole directories renamed into place, whole versions
    removed."""
    if before is None or before.directory != now.directory:
        return "" in now.whole or before is not None
    if "" in now.whole:
        return True
    names = before.parts.keys() | now.parts.keys()
    changed = [name for name in names if before.parts.get(name) != now.parts.get(name)]
    return all(name in now.whole or (name not in now.parts and name.isdigit()) for name in changed)


log = logging.getLogger(__name__)

#: how long a change must have stayed the same after a request for a scan, seconds
SETTLE_ON_REQUEST = 1.0
#: seconds between scans, without an interval, while the repositories could not be read since the start
_TRY_AGAIN = 10.0
#: how long after a scan that left out a model that is being unloaded, seconds
_SCAN_AGAIN = 0.5


@frozen
class ModelReload:
    """The result of a reload for one model.

    Attributes:
        versions: the versions that serve now.
        changed: whether its files had changed, so that it was loaded or unloaded.
        reason: why its last load failed, its files cannot be read, or no version serves; "" = it serves as its files
            say.
    """

    name: str
    versions: tuple[str, ...]
    changed: bool
    reason: str = ""


class Poller:
    """Scans the repositories, and has the registry load and unload what has changed.

    Args:
        interval: seconds between scans, and how long a change must have stayed the same; None = scan on request only,
            once the repositories could be read.

    Attributes:
        on_settled: called when a requested scan is done: no change is pending, and all changes are loaded.
    """

    def __init__(self, repository: Repository, registry: Registry, interval: float | None) -> None:
        self._repository = repository
        self._registry = registry
        self._interval = interval
        self._watch = Watch({})
        self._wake = asyncio.Event()
        self._requested = False
        self._scanning = asyncio.Lock()
        #: loads, and their models: whether the files of each have changed. A load may take as long as a model that
        #: hangs, and must not delay others
        self._loads: dict[asyncio.Task[None], dict[str, bool]] = {}
        self._trouble = ""
        #: the last scan failed unexpectedly, which was logged
        self._failure = ""
        #: models whose last requests are being answered: they are looked for again after that
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self.on_settled: Callable[[], None] = lambda: None

    async def scan_first(self) -> None:
        """Take the first scan, with which later ones are compared. Call it before the first load.

        The load reports a repository that cannot be read, so this does not log it.
        """
        found = await self._scan(logged=False)
        self._watch = Watch(found[0] if found is not None else {})

    def request_scan(self) -> None:
        """Request a scan as soon as possible."""
        self._requested = True
        self._wake.set()

    async def reload(self, names: Sequence[str], *, unload_first: bool = False) -> list[ModelReload]:
        """Load and unload what has changed, at once. Return the result for each model, and for ensembles that need one
        and failed.

        Args:
            names: models whose files are complete; one that does not serve is loaded even if nothing changed. Empty =
                all that have changed, once they are no longer being copied.
            unload_first: unload the serving versions of `names` first, because memory holds one only; requests wait.

        Raises:
            Unavailable: a repository cannot be read.
        """
        self._repository.retry()
        wanted, done = await (self._reload_named(names, unload_first) if names else self._reload_changed())
        if self._unloading:
            self.request_scan()
        changed = {*done.load, *done.unload}
        wanted += [one for one in self._registry.failed_dependents(wanted) if one not in wanted]
        return [self._reloaded(name, name in changed, name in done.unload) for name in wanted]

    async def _reload_named(self, names: Sequence[str], unload_first: bool) -> tuple[list[str], Changes]:
        async with self._scanning:
            models, unreadable = await self._scanned()
            find = self._watch.find_known
            wanted = list(dict.fromkeys(one for name in names for one in find(models, name) or [name]))
            changes = self._watch.take(models, wanted, unreadable)
            self._stop_outdated(changes)
        load = [name for name in wanted if name in models]
        await self._start_load(self._with_rebound(load), changes.load, asked=load, unload_first=unload_first)
        return wanted, changes

    async def _reload_changed(self) -> tuple[list[str], Changes]:
        """Load and unload what has changed, and wait for earlier changes that are being loaded."""
        load: list[str] = []
        unload: list[str] = []
        unread: set[str] = set()
        while True:
            async with self._scanning:
                models, unreadable = await self._scanned()
                changes = self._watch.compare(models, time.monotonic(), SETTLE_ON_REQUEST, unreadable)
                self._stop_outdated(changes)
            earlier = {task: loaded for task, loaded in self._loads.items() if any(loaded.values())}
            tried = self._with_rebound([*changes.load, *changes.unread])
            await self._start_load(tried, changes.load, asked=changes.changed, unread=changes.unread)
            if earlier:
                await asyncio.wait(earlier)
            for loaded in earlier.values():
                load += [name for name, changed in loaded.items() if changed]
                unread |= loaded.keys()
            load += changes.load
            unload += changes.unload
            unread |= set(changes.unread)
            if changes.again is None:
                return sorted({*load, *unload, *unread}), Changes(tuple(load), tuple(unload))
            await asyncio.sleep(max(0.0, changes.again - time.monotonic()))

    async def _scanned(self) -> tuple[dict[str, Snapshot], set[str]]:
        found = await self._scan()
        if found is None:
            raise Unavailable(f"the model repositories cannot be read: {self._trouble}")
        models, unreadable = found
        return self._without_unloading(models), unreadable

    def _without_unloading(self, models: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
        """Return the models of a scan without those whose earlier files are being unloaded: a load would wait for that,
        and delay all others."""
        return {name: model for name, model in models.items() if name not in self._unloading}

    def _reloaded(self, name: str, changed: bool, unloaded: bool) -> ModelReload:
        reason = self._registry.why_not(name)
        versions = () if unloaded else self._registry.ready_versions(name)
        if name in self._unloading and not unloaded:
            reason = "it is being unloaded, and loads again once its last request is answered"
        elif not (versions or unloaded or reason):
            reason = f"the model repositories hold no model '{name}'"
        return ModelReload(name, versions, changed, reason)

    async def run(self) -> None:
        """Scan until cancelled; then the loads of what has changed are cancelled, too."""
        try:
            await self._run()
        finally:
            for task in self._loads:
                task.cancel()

    async def _run(self) -> None:
        settle = self._interval or SETTLE_ON_REQUEST
        due, asked, again = self._next(), False, None
        while True:
            requested = await self._asked(due)
            if requested:
                log.info("looking for changes in the model repositories")
                asked = True
                self._repository.retry()
            scans = requested or (due is not None and time.monotonic() >= due)  # else a load has ended
            if scans:
                again = await self._scan_or_log(min(settle, SETTLE_ON_REQUEST) if asked else settle)
            if again is None and not self._loads:
                if not self._trouble:
                    self._registry.load_history.unreadable = ""
                if asked:
                    asked = False
                    self.on_settled()
            if scans or self._interval is None:
                due = min((moment for moment in (self._next(), again) if moment is not None), default=None)

    async def _scan_or_log(self, settle: float) -> float | None:
        """Scan as `_scan_once` does; scan again soon if that failed unexpectedly, such as without a free thread."""
        try:
            again = await self._scan_once(settle)
        except Exception as error:  # one failed scan must not be the last
            if repr(error) != self._failure:
                self._failure = repr(error)
                log.exception("looking for changes in the model repositories failed; it is repeated, and may miss what "
                              "this one found: load such models by name")  # fmt: skip
            return time.monotonic() + min(self._interval or _TRY_AGAIN, _TRY_AGAIN)
        self._failure = ""
        return again

    def _next(self) -> float | None:
        interval = self._interval
        if interval is None and self._registry.load_history.unreadable:
            interval = _TRY_AGAIN
        return None if interval is None else time.monotonic() + interval

    async def _asked(self, due: float | None) -> bool:
        """Wait until `due`, the end of a load, or a request for a scan. Return whether there was a request."""
        timeout = None if due is None else max(0.0, due - time.monotonic())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)
        self._wake.clear()
        asked, self._requested = self._requested, False
        return asked

    async def _scan_once(self, settle: float) -> float | None:
        """Scan once and act on it. Return when to scan again because of changes that are not complete; None = there are
        none."""
        async with self._scanning:
            found = await self._scan()
            if found is None:
                return None
            models, unreadable = found
            changes = self._watch.compare(self._without_unloading(models), time.monotonic(), settle, unreadable)
            self._stop_outdated(changes)
        loading = {name for names in self._loads.values() for name in names}
        unread = [name for name in changes.unread if name not in loading]
        if load := self._with_rebound([*changes.load, *unread], loading):
            self._start_load(load, changes.load, changes.changed, unread)
        if changes.again is None and not self._unloading.keys().isdisjoint(models):
            return time.monotonic() + _SCAN_AGAIN
        return changes.again

    def _stop_outdated(self, changes: Changes) -> None:
        """Start to unload the models that are gone, and stop the loads of files that have changed."""
        for name in changes.load:
            self._registry.stop_loading(name, "its files have changed meanwhile")
        for name in changes.unload:
            self._registry.load_history.remove(name)
            if self._registry.knows(name):
                log.info("model %s is gone from the repository", name, extra=model_fields(name))
                self._registry.stop_loading(name, "it is gone from the repository")
                task = asyncio.get_running_loop().create_task(self._registry.unload(name), name=f"unload {name}")
                self._unloading[name] = task  # it may take as long as its last request, and must not delay other models
                task.add_done_callback(partial(self._on_unloaded, name))

    def _with_rebound(self, changed: Collection[str], loading: Collection[str] = ()) -> list[str]:
        """Return models that have changed, and the ensembles whose steps refer to others because of that, unless those
        are `loading`."""
        return list(dict.fromkeys([*changed, *(one for one in self._registry.find_rebound() if one not in loading)]))

    def _start_load(
        self,
        names: Collection[str],
        changed: Collection[str],
        asked: Collection[str],
        unread: Collection[str] = (),
        unload_first: bool = False,
    ) -> asyncio.Task[None]:
        """Start `_load`. Scans and reloads that follow know what is being loaded.

        Args:
            changed: those of `names` whose files have changed.
        """
        loading = self._load(names, asked, unread, unload_first)
        task = asyncio.get_running_loop().create_task(loading, name="load changed models")
        self._loads[task] = {name: name in changed for name in names}
        task.add_done_callback(self._on_loaded)
        return task

    async def _load(
        self, names: Collection[str], asked: Collection[str], unread: Collection[str] = (), unload_first: bool = False
    ) -> None:
        """Load models. Those that safe mode leaves out only if they are `asked` for, or their files have changed.

        Args:
            unread: as in `Changes`.
            unload_first: see `LoadBatch`.
        """
        if not names:
            return
        if changed := [name for name in names if name not in unread]:
            log.info("changed in the repository: %s", ", ".join(changed))
        if unread:
            log.debug("models that could not be read are tried again: %s", ", ".join(unread))
        history = self._registry.load_history
        history.readmit(asked)
        for name in history.left_out.keys() & set(names):
            text = "safe mode: model %s can be read now, and stays left out: %s"
            advice = "load it by 'edge-serve safe-mode --leave', or by a change in its directory"
            log.warning(text, name, advice, extra=model_fields(name))
        try:
            await self._registry.load_all(names, own_worker=True, scanned=True, unload_first=unload_first)
        except Exception:  # a bug must not end the polling
            log.exception("loading what has changed failed")

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        """Wake `run`: a request for a scan is done once its changes are loaded."""
        del self._loads[task]
        self._wake.set()

    def _on_unloaded(self, name: str, _: asyncio.Task[None]) -> None:
        del self._unloading[name]

    async def _scan(self, *, logged: bool = True) -> tuple[dict[str, Snapshot], set[str]] | None:
        """Return `Repository.snapshots`, or None if a repository cannot be read.

        This is logged once, unless `logged` is false, and nothing is unloaded because of it.
        """
        try:
            found = await offload(self._repository.snapshots)
        except (EdgeServeError, OSError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                if logged:
                    log.error("the model repositories cannot be followed: %s", error)
            return None
        if self._trouble:
            self._trouble = ""
            log.info("the model repositories can be read again")
        return found
