"""Loads versions beside those that serve, swaps them in, and drains the old ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from edge_serve.errors import Cancelled, EdgeServeError, Internal, Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.control.instance_updater import InstanceUpdater
from edge_serve.models.control.load_slots import LoadSlots
from edge_serve.models.control.records import ModelRecord, VersionRecord
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.load.batch import LoadBatch
from edge_serve.models.load.dependencies import LoadFailure, members_of
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.loading import Loader
from edge_serve.models.load.memory import Memory, Way
from edge_serve.models.versions.lifecycle import VersionEvent, VersionState
from edge_serve.models.versions.served import Served, ServedVersions
from edge_serve.models.versions.unloading_versions import UnloadingVersions
from edge_serve.workers.front.process import SharedProcessLost

log = logging.getLogger(__name__)

#: how often to check whether everything is answered
_LOOK_SECONDS = 0.01


class VersionSwapper:
    """Loads versions into the registry's records, and unloads them.

    Args:
        at_once: how many versions may be loading at the same time.
        serving: the table of versions for requests, kept up to date here.
        load_history: records which models are loading.
        drain_seconds: how long a version that was replaced or unloaded may drain.
        retries: further tries to load a version that failed (`--model-load-retry-count`).

    Attributes:
        leaving: a task for each version that drains, and for each instance that is removed, with its version.
        unloading: the versions that drain, and the counters of those that are closed.
    """

    def __init__(
        self,
        loader: Loader,
        at_once: int,
        serving: ServedVersions,
        load_history: LoadHistory,
        drain_seconds: float,
        retries: int,
        memory: Memory | None,
        most_waiting: int,
    ) -> None:
        self._loader = loader
        self._serving = serving
        self._load_history = load_history
        self._drain_seconds = drain_seconds
        self._retries = retries
        self._memory = memory
        self._most_waiting = most_waiting
        self.slots = LoadSlots(at_once)
        self.leaving: dict[asyncio.Task[None], Served] = {}
        self.unloading = UnloadingVersions()
        #: model -> the plan that is being loaded, and why that is to stop
        self._loading: dict[str, LoadPlan] = {}
        self._stopped: dict[str, str] = {}
        self._instance_updater = InstanceUpdater(loader, drain_seconds, memory)

    def stop_loading(self, name: str, reason: str) -> None:
        """Let the load of a model fail with this reason, if one is under way.

        A load in a worker that other models share continues to its end, because they would be lost with it.
        """
        plan = self._loading.get(name)
        if plan is not None:
            self._stopped[name] = reason
            self._loader.stop(plan, reason)

    async def swap(self, record: ModelRecord, plan: LoadPlan, batch: LoadBatch) -> bool:
        """Load every version of `plan`. When all are loaded, they take over; when one fails, none does.

        A version that serves and did not change stays, with its state and open sequences. So do the other instances of
        a version of which only `instance_group` changed.

        Returns:
            Whether more than instances changed, so that ensembles must be made anew.
        """
        serving = {} if members_of(plan.config) else record.serving()
        changed = [
            version for version in plan.versions if version not in serving or not plan.serves_same(version, record.plan)
        ]
        updated = {
            version: serving[version]
            for version in changed
            if version in serving and plan.changes_instances_only(version, record.plan, serving[version])
        }
        wanted = [version for version in changed if version not in updated]
        stay = all(known.version in plan.versions for known in record.ready())
        async with self._instance_updater.prepared(plan, updated, record.awaited) as updates:
            await self._swap(record, plan, wanted, batch)
            removals = {task: one.served for one in updates for task in self._instance_updater.commit(one)}
        self.leaving.update(removals)
        for task in removals:
            task.add_done_callback(self.leaving.pop)
        if removals and not any(served.runner.open_sequences() for served in updated.values()):
            await asyncio.wait(removals)
        return bool(wanted) or not stay

    async def _swap(self, record: ModelRecord, plan: LoadPlan, wanted: list[int], batch: LoadBatch) -> None:
        for version in wanted:
            known = record.versions.setdefault(version, VersionRecord(version))
            if known.state in (VersionState.GONE, VersionState.DRAINING):
                known.move(VersionEvent.RELOADED)
        self._loading[record.name] = plan
        try:
            opened = await self._open_all(record, plan, wanted, batch)
        finally:
            del self._loading[record.name]
            self._stopped.pop(record.name, None)
        failures = {v: r for v, r in zip(wanted, opened, strict=True) if isinstance(r, EdgeServeError)}
        fresh = [served for served in opened if not isinstance(served, EdgeServeError)]
        if failures:
            await self._fail_load(record, fresh, failures)
            await self._reload_unloaded(record, plan, wanted)
            self._fail_queued(record, failures)
            if plan.kept is None:
                for known in record.failed():
                    known.directory = plan.directory / str(known.version)
            raise LoadFailure(record.name, _load_failure(failures))
        self._take_over(record, plan, fresh)

    async def _open_all(
        self, record: ModelRecord, plan: LoadPlan, wanted: list[int], batch: LoadBatch
    ) -> list[Served | EdgeServeError]:
        """Open versions. Those that were lost with a shared worker are opened once more, each in a worker of its own:
        only the version that ends its worker fails then."""
        opened = dict(zip(wanted, await self._open_admitted(record, plan, wanted, batch), strict=True))
        lost = [version for version, one in opened.items() if _is_shared_loss(one)]
        if lost:
            text = "model %s: other models may have ended the worker that it shared: it is loaded again in its own"
            log.warning(text, plan.name, extra=model_fields(plan.name))
            alone = replace(plan, own_worker=True)
            opened.update(zip(lost, await self._open_admitted(record, alone, lost, batch), strict=True))
        took = [
            one.opened.memory_bytes() for one in opened.values() if isinstance(one, Served) and one.opened is not None
        ]
        if took and self._memory is not None:
            self._memory.measured(plan.name, sum(took))
        return list(opened.values())

    async def _open_admitted(
        self, record: ModelRecord, plan: LoadPlan, wanted: list[int], batch: LoadBatch
    ) -> list[Served | EdgeServeError]:
        """Open versions when memory allows; if it does not, after unloading those that serve.

        The model holds one load slot meanwhile, so that memory is promised only to loads that are under way. A nested
        load, and one that a nested load waits for, use the slot of the model that asked: it would never be free if they
        had to wait for another one.
        """
        if not wanted:
            return []
        own_worker, awaited = batch.own_worker, record.awaited
        async with self.slots.take(awaited):
            if members_of(plan.config):
                return await self._open_each(plan, wanted, own_worker)
            going = [
                known
                for known in record.ready()
                if known.queue is None and (known.version in wanted or known.version not in plan.versions)
            ]
            if going and batch.unload_first and plan.name in batch.wanted:
                await self._unload_first(record, going, "the request asks for it")
                going = []
            if self._memory is None:
                return await self._open_each(plan, wanted, own_worker)
            files = plan.file_bytes(wanted)
            replaced = sum(_freed_bytes(known) for known in going)
            joins = self._loader.joins(plan, own_worker=own_worker)
            try:
                async with (
                    self._memory.admit(plan.name, files, replaced, joins=joins, awaited=awaited) as way,
                    self._loader.admit_to_gpus(
                        plan, files, joins=joins, replaces=bool(going), awaited=awaited
                    ) as way_on_gpus,
                ):
                    if Way.INSTEAD in (way, way_on_gpus):
                        await self._unload_first(record, going, "memory holds one version only")
                    return await self._open_each(plan, wanted, own_worker)
            except EdgeServeError as error:
                log.error("failed to load '%s': %s", plan.name, error.message, extra=model_fields(plan.name))
                return [error for _ in wanted]

    async def _unload_first(self, record: ModelRecord, going: list[VersionRecord], reason: str) -> None:
        """Close versions that serve. Requests for them wait until `_take_over` or `_fail_queued`."""
        text = "model %s: %s, so the versions that serve are unloaded first; requests wait"
        log.warning(text, record.name, reason, extra=model_fields(record.name))
        tasks = []
        for known in going:
            old = known.served
            assert old is not None, "only versions that serve go"
            known.served = old.stand_in(SwapQueue(record.name, self._most_waiting))
            tasks.append(self._start_drain(old, replaced=False))
        self._refresh(record)
        await asyncio.wait(tasks)

    async def _reload_unloaded(self, record: ModelRecord, plan: LoadPlan, wanted: list[int]) -> None:
        """Load the versions again that were unloaded first, because their successors failed, so that queued requests
        are answered.

        A version whose files were replaced under the same name in `plan` cannot be loaded again.
        """
        old = record.plan
        for known in record.ready():
            queue, stand_in = known.queue, known.served
            if old is None or stand_in is None or queue is None:
                continue
            if old.directory == plan.directory and known.version in wanted:
                continue
            back = await self._try(old, known.version, own_worker=True)
            if _is_shared_loss(back):
                back = await self._try(replace(old, own_worker=True), known.version, own_worker=True)
            if not isinstance(back, EdgeServeError):
                queue.submit_all(back)
                back.continue_counters(stand_in)
                self._start_drain(stand_in, replaced=True)
                known.served = back
                text = "model %s version %s serves again, because its successor failed to load"
                log.warning(text, record.name, known.version, extra=model_fields(record.name, known.version))
        self._refresh(record)

    def _fail_queued(self, record: ModelRecord, failures: dict[int, EdgeServeError]) -> None:
        """Fail the queued requests: the new versions failed to load, and the old ones are unloaded."""
        for known in record.ready():
            if known.queue is not None:
                error = failures.get(known.version) or next(iter(failures.values()))
                known.queue.fail(error)
                self._start_drain(known.retire(), replaced=False)
                known.move(VersionEvent.DRAINED, error.as_triton())
        self._refresh(record)

    async def _open_each(self, plan: LoadPlan, wanted: list[int], own_worker: bool) -> list[Served | EdgeServeError]:
        """Open versions one after the other in the slot of their model, and in further slots while some are free."""
        own_slot = asyncio.Lock()

        async def open(version: int) -> Served | EdgeServeError:
            async with self.slots.take(asyncio.Event()) if own_slot.locked() and not self.slots.is_full() else own_slot:
                with self._load_history.load(plan.name):
                    return await self._open_with_retries(plan, version, own_worker)

        return await asyncio.gather(*map(open, wanted))

    async def _open_with_retries(self, plan: LoadPlan, version: int, own_worker: bool) -> Served | EdgeServeError:
        for left in range(self._retries, -1, -1):
            opened = await self._try(plan, version, own_worker)
            is_final = not left or isinstance(opened, Cancelled) or _is_shared_loss(opened)
            if is_final or not isinstance(opened, EdgeServeError):
                break
            text, extra = "model %s version %d is tried again, at most %d times", model_fields(plan.name, version)
            log.info(text, plan.name, version, left, extra=extra)
        return opened

    async def _try(self, plan: LoadPlan, version: int, own_worker: bool) -> Served | EdgeServeError:
        extra = model_fields(plan.name, version)
        try:
            if plan.name in self._stopped:  # while it waited for its turn, or between two tries
                raise Cancelled("")
            if members_of(plan.config):
                return await self._loader.open_ensemble(plan, version, self._serving.lookup)
            return await self._loader.open(plan, version, own_worker=own_worker)
        except EdgeServeError as error:
            stopped = self._stopped.get(plan.name)
            failure = Cancelled(f"the load was stopped: {stopped}") if stopped else error
            level = logging.WARNING if _is_shared_loss(failure) else logging.ERROR
            level = logging.INFO if isinstance(failure, Cancelled) else level
            log.log(level, "failed to load '%s' version %d: %s", plan.name, version, failure.as_triton(), extra=extra)
            return failure
        except Exception as error:  # a bug must not look like a model that is still loading
            log.exception("failed to load '%s' version %d", plan.name, version, extra=extra)
            return Internal(f"{type(error).__name__}: {error}")

    async def _fail_load(self, record: ModelRecord, opened: list[Served], failures: dict[int, EdgeServeError]) -> None:
        for version in record.versions.values():
            if version.state is VersionState.LOADING:
                error = failures.get(version.version)
                version.move(VersionEvent.FAILED, error.as_triton() if error else "unloaded")
        await asyncio.gather(*map(self._loader.close, opened))

    def _take_over(self, record: ModelRecord, plan: LoadPlan, fresh: list[Served]) -> None:
        replaced = [known for known in record.ready() if known.version not in plan.versions]
        for served in fresh:
            known = record.versions[int(served.version)]
            if known.served is not None:
                if known.queue is not None:
                    known.queue.submit_all(served)
                served.continue_counters(known.served)
                self._start_drain(known.served, replaced=True)
            else:
                known.move(VersionEvent.LOADED)
            known.served = served
            text, extra = "model %s version %s ready in %.2f s", model_fields(served.name, served.version)
            log.info(text, served.name, served.version, served.load_seconds, extra=extra)
        for known in replaced:
            if known.queue is not None:
                known.queue.submit_all(fresh[-1])
            self._retire(known, replaced=True)
        record.plan = plan
        self._refresh(record)

    def retire(self, record: ModelRecord, failure: LoadFailure | None = None) -> list[asyncio.Task[None]]:
        """Take all versions of a model out of service. Return a task for each, done when it is closed.

        Args:
            failure: why they cannot serve any more, which counts as a failed load; None = they are unloaded.
        """
        tasks = [self._retire(version, replaced=False, failure=failure) for version in record.ready()]
        self._serving.remove_all(record.name)
        self._refresh(record)
        return tasks

    def _retire(
        self, known: VersionRecord, *, replaced: bool, failure: LoadFailure | None = None
    ) -> asyncio.Task[None]:
        old = known.retire()
        task = self._start_drain(old, replaced=replaced)

        def drained(_: asyncio.Task[None]) -> None:
            if known.state is VersionState.DRAINING:  # it may have been loaded again meanwhile
                known.move(VersionEvent.DRAINED, failure.reason if failure is not None else "unloaded")
                known.directory = old.directory / old.version if failure is not None and old.kept is None else None

        task.add_done_callback(drained)
        return task

    def _start_drain(self, served: Served, *, replaced: bool) -> asyncio.Task[None]:
        """Drain and close a version. One that was replaced also waits for its open sequences to end."""
        served.leaving = True
        sequences = replaced and self._serving.drain(served)
        self.unloading.versions.add(served)
        task = asyncio.get_running_loop().create_task(self._drain(served, sequences), name=f"drain {served.name}")
        self.leaving[task] = served
        task.add_done_callback(self.leaving.pop)
        return task

    def callers(self, names: Collection[str]) -> list[asyncio.Task[None]]:
        """Return the drain tasks of ensembles that need one of `names` themselves: their requests may still call these
        models."""
        return [task for task, one in self.leaving.items() if not members_of(one.config).keys().isdisjoint(names)]

    async def _drain(self, served: Served, sequences: bool) -> None:
        started = time.monotonic()
        late = False
        try:
            await asyncio.wait_for(_answered(served, sequences), self._drain_seconds)
        except asyncio.TimeoutError:
            late = True
            log.warning(
                "model %s version %s still has %d requests and %d open sequences after %g s",
                served.name, served.version, served.runner.in_flight(), served.runner.open_sequences(),
                self._drain_seconds,
                extra=model_fields(served.name, served.version),
            )  # fmt: skip
        self._serving.remove(served)
        await self._loader.close(served)
        if late:
            served.runner.fail_all(_too_late(served, self._drain_seconds))
        served.lineage.close(served.statistics)
        self.unloading.close(served)
        text, extra = "model %s version %s unloaded in %.2f s", model_fields(served.name, served.version)
        log.info(text, served.name, served.version, time.monotonic() - started, extra=extra)

    def _refresh(self, record: ModelRecord) -> None:
        ready = record.ready()
        before = self._serving.highest.get(record.name)
        if before is not None and any(known.served is before for known in ready[:-1]) and self._serving.drain(before):
            # it still serves, but the highest version starts new sequences without a version from now on
            asyncio.get_running_loop().call_later(self._drain_seconds, self._serving.remove, before)
        if ready and ready[-1].served is not None:
            self._serving.highest[record.name] = ready[-1].served
        else:
            self._serving.highest.pop(record.name, None)


def _is_shared_loss(opened: Served | EdgeServeError) -> bool:
    """Return whether a load, or its warm-up, was lost with a worker that other models may have ended."""
    return isinstance(opened, EdgeServeError) and SharedProcessLost in (type(opened), type(opened.__cause__))


def _freed_bytes(known: VersionRecord) -> int:
    """Return the memory that is certainly free once a version is unloaded: that of its own processes."""
    opened = known.served.opened if known.served is not None else None
    return opened.own_memory_bytes() if opened is not None else 0


def _load_failure(failures: dict[int, EdgeServeError]) -> str:
    return "".join(
        f"version {version} is at UNAVAILABLE state: {error.as_triton()};" for version, error in failures.items()
    )


def _too_late(served: Served, seconds: float) -> Unavailable:
    return Unavailable(
        f"model '{served.name}' version {served.version} was replaced or unloaded, and this request was not done "
        f"{seconds:g} s later (--swap-drain-secs)"
    )


async def _answered(served: Served, sequences: bool) -> None:
    """Wait until `served` has answered all accepted requests; with `sequences`, also until its open sequences have
    ended."""
    idle = asyncio.Event()
    try:
        await served.wait_released()  # requests whose bodies are still being decoded are not in the queue yet
        while served.has_stand_in and served.runner.in_flight():  # their models may call this version (`ModelCalls`)
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        served.runner.stop(idle.set, sequences=sequences)
    await idle.wait()
    await served.wait_released()  # responses that are still being encoded


async def wait_idle(loaded: Callable[[], Iterable[Served]], seconds: float) -> None:
    """Wait until all versions have answered, at most `seconds`. No client can send new requests meanwhile."""
    end = time.monotonic() + seconds
    while any(one.runner.in_flight() for one in loaded()) and time.monotonic() < end:
        await asyncio.sleep(_LOOK_SECONDS)
