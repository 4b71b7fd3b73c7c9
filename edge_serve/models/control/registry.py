"""The table of all models: load, unload, swap, readiness, lookup and the repository index.

Texts follow triton-inference-server/core src/model_repository_manager/ (model_repository_manager.cc,
model_lifecycle.cc). A failed load changes nothing about the versions that serve. The successor of a version is loaded
and warmed up beside it and then takes over; the old version drains before it is closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter

from edge_serve.aio.offload import offload
from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unavailable, UnreadableEntry, with_advice
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.metadata import IndexEntry
from edge_serve.models.control.loads import ModelLoads
from edge_serve.models.control.records import (
    ModelRecord,
    ModelSummary,
    explain_absent,
    readiness,
    repository_index,
    unready_required,
)
from edge_serve.models.control.version_swap import VersionSwapper, wait_idle
from edge_serve.models.load.batch import LoadBatch, Planner
from edge_serve.models.load.dependencies import Needs, dependents, find_unneeded, members_of, outermost_first
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.load.loading import Loader
from edge_serve.models.load.memory import Memory
from edge_serve.models.repository.names import check_name, parse_version
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel, Repository, plain_name
from edge_serve.models.versions.lifecycle import VersionState
from edge_serve.models.versions.served import Served, ServedVersions
from edge_serve.models.versions.unloading_versions import BusyVersion, busy_versions
from edge_serve.observe.metrics.source import ModelSeries, Readiness

log = logging.getLogger(__name__)

_FAILED_TO_LOAD = "it failed to load: edge-serve status and the log of the server say why"

#: models whose health is asked for before the loop has a turn
ASKED_AT_ONCE = 16


class Registry:
    """All models of the server.

    Args:
        required: names of the models without which the server is not ready; empty = all that were asked for.
        at_once: how many versions may be loading at the same time (`--model-load-thread-count`).
        drain_seconds: how long a version that was replaced or unloaded may drain.
        retries: further tries to load a version that failed (`--model-load-retry-count`).
        memory: decides whether a version fits; None = all are loaded (`--memory-admission=false`).
        most_waiting: how many requests may wait in a swap queue (`--swap-queue-size`).

    Attributes:
        lookup, sequence_version: see `ServedVersions`. The look-up raises InvalidArgument if the version is no number,
            NotFound if it was never loaded, and Unavailable if it was loaded, and is not ready.
        load_history: which models are loading, failed, or left out.
        unloading: versions that were replaced or unloaded, and drain.
    """

    def __init__(
        self,
        repository: Repository,
        loader: Loader,
        required: Iterable[str] = (),
        at_once: int = 4,
        drain_seconds: float = 300.0,
        retries: int = 0,
        memory: Memory | None = None,
        most_waiting: int = 0,
    ) -> None:
        self._repository = repository
        self._required = frozenset(required)
        #: required models that were not in the repository at the start, and the probable reason
        self._absent: dict[str, str] = {}
        self._models: dict[str, ModelRecord] = {}
        self._serving = ServedVersions(self._find)
        self.lookup, self.sequence_version = self._serving.lookup, self._serving.sequence_version
        self.load_history = LoadHistory()
        self._at_once = at_once
        self._swapper = VersionSwapper(
            loader, at_once, self._serving, self.load_history, drain_seconds, retries, memory, most_waiting
        )
        self.unloading = self._swapper.unloading
        self._builds = loader.builds
        self._builds.on_progress = self._on_build
        planner = Planner(repository, loader, self.load_history)
        self._loads = ModelLoads(self._models, planner, self._swapper, self._serving, self.load_history)

    def _on_build(self, name: str, version: int, text: str) -> None:
        """Show the progress of a build as the reason for which a version does not serve yet."""
        known = self._models[name].versions.get(version)
        if known is not None and known.state is VersionState.LOADING:
            known.reason = text

    def load_one_by_one(self, wanted: bool) -> None:
        """Begin or end to load one version at a time, in place of `at_once`."""
        self._swapper.slots.resize(1 if wanted else self._at_once)

    def load_beside_late(self, began_before: float) -> None:
        """Let the next models load beside those that began to load before a time (`time.monotonic`), which are late."""
        self.load_history.note_late(began_before)
        self._swapper.slots.release_late(began_before)

    # ---- asking -------------------------------------------------------------------------------------------------

    def serving(self, name: str, version: str) -> Served | None:
        """Return what `lookup` returns, or None if no version of this name and number serves."""
        try:
            return self.lookup(name, version)
        except EdgeServeError:
            return None

    def _unknown(self, name: str, lack: str) -> NotFound:
        """Return the error for a model without a version to serve. It says that the load failed, but not why.

        Args:
            name: its key in the registry; clients do not see the namespace, which is a path of this machine.
        """
        record = self._models.get(name)
        advice = _FAILED_TO_LOAD if record is not None and record.failure else ""
        return NotFound(with_advice(f"Request for unknown model: '{plain_name(name)}' {lack}", advice))

    def _find(self, name: str, version: str) -> Served:
        """Return the version for a request that names a number, or whose model `highest` does not have by this name.

        Raises:
            EdgeServeError: as `lookup`.
        """
        if self._repository.namespaced:
            name = self._identity(name)
        if not version and name in self._serving.highest:
            return self._serving.highest[name]
        number = parse_version(version) if version else 0  # Triton refuses an invalid one of any model
        record = self._models.get(name)
        if record is None or not (record.versions or record.barren):
            raise self._unknown(name, "is not found")
        if not version:
            raise self._unknown(name, "has no available versions")
        known = record.versions.get(number)
        if known is None:
            raise NotFound(f"Request for unknown model: '{plain_name(name)}' version {number} is not found")
        if known.served is None:
            replaced = self._serving.draining(name, version)
            if replaced is not None:
                return replaced
            text = f"Request for unknown model: '{plain_name(name)}' version {number} is not at ready state"
            raise Unavailable(text)
        return known.served

    def _identity(self, name: str) -> str:
        """Return the one model that `name` means, among those that serve, or else one that was asked for.

        Raises:
            InvalidArgument: several models of this name serve, in different namespaces.
        """
        if name in self._models:
            return name
        found = [identity for identity in self._serving.highest if plain_name(identity) == name]
        if len(found) > 1:
            text = f"There are {len(found)} identifiers of model '{name}' in global map, "
            raise InvalidArgument(f"{text}model namespace must be provided to resolve ambiguity.")
        found += (identity for identity in self._models if plain_name(identity) == name)
        return found[0] if found else name

    def knows(self, name: str) -> bool:
        """Return whether a client or operator asked for the model at least once."""
        return name in self._models

    def ready_versions(self, name: str) -> tuple[str, ...]:
        """Return the numbers of the versions that serve, ascending.

        Raises:
            InvalidArgument: as `lookup`, where names are ambiguous.
        """
        record = self._models.get(self._identity(name))
        return tuple(str(version.version) for version in record.ready()) if record else ()

    def served(self) -> list[Served]:
        """Return every version that serves, by name and number."""
        return list(self.each_served())

    def each_served(self) -> Iterator[Served]:
        """Yield what `served` returns. The table may change meanwhile."""
        for _, record in sorted(self._models.items()):
            yield from record.serving().values()

    def each_loaded(self) -> Iterator[Served]:
        """Yield every version that serves, and then those that drain. The tables may change meanwhile."""
        yield from self.each_served()
        yield from list(self.unloading.versions)

    def busy(self) -> list[BusyVersion]:
        """Return the versions that have requests to answer, draining ones included."""
        return busy_versions(self.each_loaded())

    def series(self) -> Iterator[ModelSeries]:
        """Yield the values on the metrics page of each version that serves."""
        return (self.unloading.add_to(served.series(), served) for served in self.each_served())

    def readiness(self) -> Iterator[Readiness]:
        """Yield the readiness of each version that serves or should serve."""
        return readiness(self._models, {**self._repository.faults, **self.load_history.left_out})

    def is_ready(self) -> bool:
        """Return strict readiness: each version of each model that counts is healthy or was unloaded, and no model
        lacks one. As in Triton, a model whose configuration cannot be read, or that lacks a member, does not count.

        The server is not ready in safe mode, while it leaves safe mode, and if it could not read its repositories.
        """
        if self.load_history.left_out or self.load_history.returning or self.load_history.unreadable:
            return False
        if not self._required:
            return all(map(attrgetter("is_settled"), self._models.values()))
        if not self._required.issubset(map(plain_name, self._serving.highest)):
            return False
        return all(record.is_settled for name, record in self._models.items() if plain_name(name) in self._required)

    def summaries(self) -> Iterator[ModelSummary]:
        """Yield the state of every model that was asked for, or whose directory cannot be read."""
        faults = self._repository.faults
        for name in sorted(self._models.keys() | faults.keys()):
            yield (self._models.get(name) or ModelRecord(name)).summarize(faults.get(name, ""))

    def unready_required(self) -> list[ModelSummary]:
        """Return the required models that are not ready, with the reasons."""
        if not self._required:
            return []
        return unready_required(self._required, self.summaries(), self._absent)

    async def find_required(self) -> None:
        """Log each required model that is not in the repositories.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        if self._required:
            self._absent = explain_absent(self._required, set(map(plain_name, await offload(self._repository.scan))))
        for name, reason in self._absent.items():
            log.warning("required model '%s' is %s (--required-model)", name, reason, extra=model_fields(name))

    def index(self, *, ready_only: bool, found: Mapping[str, FoundModel] | None = None) -> Iterator[IndexEntry]:
        """Yield the repository index: the models on disk and those that were loaded, by name.

        Args:
            found: what `scan` returned; None = unknown.
        """
        left_out, faults = self.load_history.left_out, self._repository.faults
        return repository_index(found, self._models, left_out, faults, ready_only=ready_only)

    async def scan(self) -> dict[str, FoundModel]:
        """Scan the repositories, in a thread.

        Raises:
            InvalidArgument: a repository cannot be read.
        """
        return await offload(self._repository.scan)

    # ---- loading ------------------------------------------------------------------------------------------------

    async def load_all(
        self,
        names: Iterable[str] | None = None,
        *,
        own_worker: bool = False,
        scanned: bool = False,
        unload_first: bool = False,
    ) -> list[str]:
        """Load models concurrently: all of the repository, or `names`. Ensembles load after their members.

        Args:
            own_worker, scanned, unload_first: see `LoadBatch`.

        Returns:
            One text per model that failed. Without `names`, an entry of a repository that cannot be read is none.
        """
        if names is None:
            found = await self.scan()
            wanted = sorted(found.keys() - self._repository.faults.keys())
        else:
            wanted = await self._named(list(dict.fromkeys(names)))
        wanted = self.load_history.wanted(wanted)
        scanned |= names is None
        batch = LoadBatch(wanted, own_worker=own_worker, scanned=scanned, unload_first=unload_first)
        results = await self._loads.load(batch)
        self.load_history.failed = {name for name in wanted if results[name] is not None}
        errors = [error for error in (results[name] for name in wanted) if error is not None]
        return [
            error.message for error in errors if names is not None or not isinstance(error.__cause__, UnreadableEntry)
        ]

    def why_not(self, name: str) -> str:
        """Return the reason why the last load of a model failed, or why it cannot be read; "" = neither."""
        if name in self._models and self._models[name].failure:
            return self._models[name].failure
        faults = self._repository.faults.items()
        return next((reason for one, reason in faults if name in (one, plain_name(one))), "")

    async def load(
        self, name: str, override: Override | None = None, *, own_worker: bool = True, nested: bool = False
    ) -> None:
        """Load or reload a model, and the members of an ensemble.

        Args:
            override, own_worker, nested: see `LoadBatch`.

        Raises:
            InvalidArgument: a bad name, or a version failed to load (its reason is in the text).
            Internal: the model or its configuration could not be read.
        """
        check_name(name)
        wanted = await self._named([name])
        self.load_history.readmit(wanted)
        results = await self._loads.load(LoadBatch(wanted, override, own_worker=own_worker, nested=nested))
        for error in (results[one] for one in wanted):
            if error is not None:
                raise error
        self.load_history.unreadable = ""

    async def _named(self, names: Collection[str]) -> list[str]:
        """See `Repository.named`, which reads the disk with namespaces only."""
        return await offload(self._repository.named, names) if self._repository.namespaced else list(names)

    def stop_loading(self, name: str, reason: str) -> None:
        """See `VersionSwapper.stop_loading`."""
        self._swapper.stop_loading(name, reason)

    def failed_dependents(self, names: Collection[str]) -> list[str]:
        """Return the ensembles that need one of `names`, and failed to load."""
        return sorted(one for one in dependents(names, self._loads.needs()) if self._models[one].failure)

    def find_rebound(self) -> list[str]:
        """Return the ensembles whose steps would refer to other models if they were loaded now."""
        plans = [record.plan for record in self._models.values() if record.plan is not None]
        return [plan.name for plan in plans if not self._repository.bound(plan.config, plan.name)]

    # ---- unloading ----------------------------------------------------------------------------------------------

    async def unload(
        self, name: str, *, unload_dependents: bool = False, begun: Callable[[], None] | None = None
    ) -> None:
        """Unload a model and the ensembles that need it; an unknown model is no error.

        Returns once all versions are closed. Its ensembles serve again when it is loaded again.

        Args:
            unload_dependents: unload the members of an ensemble too, unless they were asked for, or other models or a
                load under way need them.
            begun: called once a model accepts no more requests, or the unload waits for ensembles that drain. Given
                when a model has asked for the unload. It may be loading, so the unload then counts as nested
                (`ModelRecord.awaited`).
        """
        self._loads.cancel(name)
        for one in [one for one in self._models if name in (one, plain_name(one))]:
            self._builds.cancel(one)
            await self._unload(one, unload_dependents, begun)

    async def _unload(self, name: str, unload_dependents: bool, begun: Callable[[], None] | None) -> None:
        nested = begun is not None
        async with self._models[name].locked(nested=nested):  # after the load that is under way
            going = {name: self._mark_unwanted(name, asked=True)}
        if unload_dependents:
            for one in sorted(self._find_unneeded(name, going)):
                async with self._models[one].locked(nested=nested):
                    if one in self._find_unneeded(name, going):  # else a load has begun that needs it
                        going[one] = self._mark_unwanted(one, asked=False)
        while wave := self._outermost(going):
            draining = self._swapper.callers(wave)
            if draining:
                callers = ", ".join(sorted({self._swapper.leaving[task].name for task in draining}))
                text = "model %s is unloaded once earlier requests of %s are answered, which may call it"
                log.info(text, ", ".join(wave), callers, extra=model_fields(name))
                wave = []
            for one in wave:
                async with self._models[one].locked(nested=nested):
                    if one in self._outermost(going):  # else it was loaded again meanwhile
                        draining += self._swapper.retire(self._models[one])
            if begun is not None:
                begun()
                begun = None
            await _wait(draining)
        if begun is not None:
            begun()

    def _find_unneeded(self, name: str, going: Needs) -> set[str]:
        """Return the members to unload with the ensemble `name`, without those of `going`, which are marked already."""
        needed = self._loads.needed()

        def is_wanted(name: str) -> bool:
            return name not in self._models or self._models[name].explicit or name in needed

        return find_unneeded(name, {**self._loads.needs(), **going}, is_wanted) - going.keys()

    def _mark_unwanted(self, name: str, *, asked: bool) -> Collection[str]:
        """Let a model, whose lock the caller holds, be wanted no more. Return what it needs.

        Args:
            asked: see `ModelLoads.cancel`.
        """
        record = self._models[name]
        needs = self._loads.needs().get(name, ())
        self._loads.cancel(name, asked=asked)
        record.plan = None
        record.explicit = record.barren = False
        record.failure = ""
        record.dismiss()
        return needs

    def _outermost(self, going: Collection[str]) -> list[str]:
        """Return the models to retire next, so that requests in ensembles find the members until they are answered.

        These are models of `going` that were not loaded again, and ensembles that need one, without those that an
        ensemble among them needs.
        """
        needs = {one.identity: members_of(one.config) for one in self.each_served()}
        gone = {one for one in going if self._models[one].plan is None}
        serving = (dependents(gone, needs) | gone) & needs.keys()
        return next(iter(outermost_first(serving, needs)), [])

    async def close(self, timeout: float) -> int:
        """Unload everything, ensembles before their members, within `timeout` seconds. No load may be under way.

        Returns:
            The number of versions that were still busy.
        """
        end = time.monotonic() + timeout
        for record in self._models.values():
            record.fail_queued(Unavailable("Server exiting"))
        await wait_idle(self.each_loaded, timeout / 2)  # accepted requests may call any model
        for wave in outermost_first(self._models, self._loads.needs()):
            await _wait(self._swapper.callers(wave), end)
            await _wait([task for name in wave for task in self._swapper.retire(self._models[name])], end)
        if not self._swapper.leaving:
            return 0
        _, busy = await asyncio.wait(self._swapper.leaving, timeout=max(0.0, end - time.monotonic()))
        return len(busy)

    async def dismiss_removed(self) -> None:
        """Dismiss the failures of versions, and of models without one, whose directory does not exist any more. Called
        about once a second."""
        untried = {
            name: self._repository.places(name)
            for name, one in self._models.items()
            if one.failure and not one.versions
        }
        failed = {name: found for name, one in self._models.items() if (found := one.failed_directories())}
        if not (untried or failed):
            return
        missing = await offload(self._repository.find_missing, {**failed, **untried})
        for name, directories in missing.items():
            record = self._models[name]
            record.dismiss_missing(directories)
            if directories == untried.get(name):
                record.failure, record.barren = "", False

    async def check_health(self) -> None:
        """Ask each model for its health, without waiting for the answers. Called about once a second.

        A model with an open question is not asked again, so that a model that hangs delays nothing.
        """
        for i, one in enumerate(self.each_served()):
            one.start_health_check()
            if i % ASKED_AT_ONCE == ASKED_AT_ONCE - 1:
                await asyncio.sleep(0.001)


async def _wait(tasks: Collection[asyncio.Task[None]], end: float | None = None) -> None:
    """Wait for tasks, at most until `end` (`time.monotonic`)."""
    if tasks:
        await asyncio.wait(tasks, timeout=None if end is None else max(0.0, end - time.monotonic()))
