"""The registry's record of a model: its versions and their states, and the plan that it was loaded from.

Which models keep the server from being ready is worked out from the records: failures that count, and required models
(`--required-model`) that do not serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from edge_serve.errors import EdgeServeError
from edge_serve.messages.metadata import IndexEntry
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.load.batch import LoadBatch
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.repository.repository import FoundModel, namespace_of, plain_name
from edge_serve.models.versions.lifecycle import VersionEvent, VersionState, after
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.source import Readiness
from edge_serve.records import frozen, slotted


@slotted
class VersionRecord:
    """A version that was loaded, or that a client or operator asked for, at least once; `served` while it serves.

    Attributes:
        directory: of a version that failed to load, in the repository; None = its files came with a load request.
        dismissed: whether its failure no longer counts for the readiness of the server.
    """

    version: int
    state: VersionState = VersionState.LOADING
    reason: str = ""
    served: Served | None = None
    directory: Path | None = None
    dismissed: bool = False

    @property
    def queue(self) -> SwapQueue | None:
        """The requests that wait while the version is unloaded, and its successor is not loaded yet."""
        runner = self.served.runner if self.served is not None else None
        return runner if isinstance(runner, SwapQueue) else None

    def move(self, event: VersionEvent, reason: str = "") -> None:
        """Apply an event of the state table."""
        self.state = after(self.state, event)
        self.reason = reason
        self.directory, self.dismissed = None, False

    def retire(self) -> Served:
        """Take the version that serves out of service, and return it."""
        served, self.served = self.served, None
        assert served is not None, "only a version that serves is retired"
        self.move(VersionEvent.RETIRED)
        return served

    @property
    def failed(self) -> bool:
        """Whether it failed to load, and the failure counts for readiness."""
        return self.state is VersionState.GONE and self.reason != "unloaded" and not self.dismissed

    def news(self) -> str:
        """Return the reason for its state; of a version that serves, the recent trouble of its workers."""
        opened = self.served.opened if self.served is not None else None
        return self.reason or (opened.trouble() if opened is not None else "")

    @property
    def refusal(self) -> str:
        """The reason why a version with running workers is not ready; "" = it is, or does not serve."""
        return self.served.health.reason if self.served is not None and not self.served.healthy else ""

    @property
    def is_settled(self) -> bool:
        """Whether it does not keep the server from being ready: healthy, being swapped, unloaded, or its failure
        dismissed."""
        if self.state is VersionState.READY:
            return self.served is not None and (self.served.healthy or self.served.swapping)
        return self.state is VersionState.GONE and not self.failed


@frozen
class ModelSummary:
    """The state of a model in one word, for people: `ready`, `unready` (the model says so), `restarting` (without a
    worker), `loading`, `failed`, `unloading` or `unloaded`.

    Attributes:
        serves: whether any of its versions answers requests.
    """

    name: str
    word: str
    reason: str = ""
    serves: bool = False


log = logging.getLogger(__name__)

_WORDS = {VersionState.LOADING: "loading", VersionState.READY: "ready", VersionState.DRAINING: "unloading"}
#: a model with several versions has the first of these states that applies
_FIRST = ("failed", "unready", "restarting", "loading", "ready", "unloading", "unloaded")


@slotted
class ModelRecord:
    """A model that was loaded, or that a client or operator asked for, at least once.

    Attributes:
        name: its key in the registry.
        plan: the plan of the last load that succeeded. If a later load unloaded its versions first and failed, not all
            of them serve. An ensemble that waits for a member has one too.
        next: the plan that is being loaded.
        explicit: whether it was asked for by its own name, not only as a member of an ensemble.
        failure: why its last load failed; "" = it did not, or the repository has the reason (`Repository.faults`).
        barren: whether a load found no version to try, and it was not unloaded since.
        loads: the loads under way that have not loaded it yet.
        lock: held while its versions or its plan change.
        awaited: set while a nested load or unload has the lock or waits for it: a loading model may have asked for it.
            The load that has the lock then waits for no slot, and for no promise of memory: those may belong to the
            load of the model that asked.
    """

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    plan: LoadPlan | None = None
    next: LoadPlan | None = None
    explicit: bool = False
    failure: str = ""
    barren: bool = False
    loads: set[LoadBatch] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    awaited: asyncio.Event = field(default_factory=asyncio.Event)
    _nested: int = 0

    @contextlib.asynccontextmanager
    async def locked(self, *, nested: bool) -> AsyncIterator[None]:
        """Hold the lock for a load or unload while the context lasts.

        Args:
            nested: as in `LoadBatch`.
        """
        self._nested += nested
        if nested:
            self.awaited.set()
        try:
            async with self.lock:
                yield
        finally:
            self._nested -= nested
            if not self._nested:
                self.awaited.clear()

    @property
    def is_settled(self) -> bool:
        """Whether each version is settled, or drains beside one that serves; without versions, whether the last load
        found one, and no load is under way."""
        if not self.versions:
            return not (self.barren or self.loads)
        counted = [version for version in self.versions.values() if not version.is_settled]
        return not counted or (bool(self.ready()) and all(one.state is VersionState.DRAINING for one in counted))

    def ready(self) -> list[VersionRecord]:
        """Return the versions that serve, ascending."""
        return [record for _, record in sorted(self.versions.items()) if record.state is VersionState.READY]

    def serving(self) -> dict[int, Served]:
        """Return the versions that serve, by number, ascending."""
        return {known.version: known.served for known in self.ready() if known.served is not None}

    def serves(self, plan: LoadPlan) -> bool:
        """Return whether the versions of a plan serve already, from the same files under the same configuration."""
        if self.plan is None or not plan.versions or self.serving().keys() != set(plan.versions):
            return False
        return plan is self.plan or plan.same_as(self.plan)

    def failed(self) -> list[VersionRecord]:
        """Return the versions whose failure to load counts."""
        return [record for record in self.versions.values() if record.failed]

    def fail_queued(self, error: EdgeServeError) -> None:
        """Fail the requests that wait for the successor of a version, now and later: it will not be loaded."""
        for known in self.ready():
            if known.queue is not None:
                known.queue.fail(error)

    def dismiss(self, wanted: Collection[int] = ()) -> None:
        """Dismiss the failures, except those of `wanted` versions. As in Triton, the index still shows them."""
        for version in self.failed():
            version.dismissed = version.version not in wanted

    def failed_directories(self) -> list[Path]:
        """Return the directories of the versions whose failure to load counts."""
        return [version.directory for version in self.failed() if version.directory is not None]

    def dismiss_missing(self, directories: Collection[Path]) -> None:
        """Dismiss the failures of the versions in these directories, which do not exist any more."""
        for version in self.failed():
            if version.directory in directories:
                version.dismissed = True
                log.info("%s is gone: that this version failed to load no longer counts", version.directory)

    @property
    def is_unloaded(self) -> bool:
        """Whether no version serves, loads, drains, or counts as failed."""
        return all(one.state is VersionState.GONE and not one.failed for one in self.versions.values())

    def index_entries(self, *, ready_only: bool) -> list[IndexEntry]:
        """Return its entries of the repository index."""
        name, namespace = plain_name(self.name), namespace_of(self.name)
        return [
            IndexEntry(name, str(version.version), version.state.value, version.news(), version.dismissed, namespace)
            for _, version in sorted(self.versions.items())
            if not ready_only or version.state is VersionState.READY
        ]

    def readiness(self) -> list[tuple[str, bool]]:
        """Return the readiness of each version that serves or should; "" and False if none could be tried."""
        states = [
            (str(version.version), version.state is VersionState.READY and version.is_settled)
            for _, version in sorted(self.versions.items())
            if version.state in (VersionState.LOADING, VersionState.READY) or version.failed
        ]
        if not states and (self.failure or (not self.versions and (self.barren or self.loads))):
            states = [("", False)]
        return states

    def summarize(self, fault: str = "") -> ModelSummary:
        """Return the state of the whole model.

        Args:
            fault: why its directory cannot be read; "" = it can.
        """
        found = [
            (_word(version), version.reason or version.refusal, version.version) for version in self.versions.values()
        ]
        if not found:
            failure = self.failure or fault
            word = "loading" if self.loads else "failed" if failure else "unloaded"
            found = [(word, failure if word == "failed" else "", 0)]
        word, reason, number = min(found, key=lambda one: _FIRST.index(one[0]))
        serves = any(version.is_settled for version in self.ready())
        if word == "failed" and serves:
            reason = f"version {number}: {reason}"
        return ModelSummary(plain_name(self.name), word, reason, serves)


def _word(version: VersionRecord) -> str:
    if version.state is VersionState.READY and not version.is_settled:
        opened = version.served.opened if version.served is not None else None
        return "unready" if opened is not None and opened.complete else "restarting"
    if version.state is VersionState.GONE:
        return "unloaded" if version.is_settled else "failed"
    return _WORDS[version.state]


def readiness(models: Mapping[str, ModelRecord], others: Collection[str]) -> Iterator[Readiness]:
    """Yield the readiness of each version that serves or should serve. The table may change meanwhile.

    Versions that were unloaded, or whose failure was dismissed, are left out.

    Args:
        models: the models that were asked for at least once.
        others: the models that cannot be read, or that safe mode leaves out.
    """
    for identity in sorted({*models, *others}):
        states = models[identity].readiness() if identity in models else []
        if not states and identity in others:
            states = [("", False)]
        namespace = namespace_of(identity) or None
        for version, ready in states:
            yield Readiness(plain_name(identity), version, ready, namespace)


def repository_index(
    found: Mapping[str, FoundModel] | None,
    models: Mapping[str, ModelRecord],
    left_out: Mapping[str, str],
    faults: Mapping[str, str],
    *,
    ready_only: bool,
) -> Iterator[IndexEntry]:
    """Yield the index entries of all models, by name. The table may change meanwhile.

    As in Triton, an unloaded model whose directory is gone is left out.

    Args:
        found: the models on disk, None = unknown; models: those that were asked for at least once.
        left_out: model -> why safe mode leaves it out.
        faults: entry of a repository that cannot be read -> why.
    """
    known, found = found is not None, found or {}
    for identity in sorted(found.keys() | models.keys() | faults.keys()):
        name, record = plain_name(identity), models.get(identity)
        if identity in found and found[identity].ambiguous:
            yield IndexEntry(name, state="UNAVAILABLE", reason="model appears in two or more repositories")
        elif record is not None and record.versions:
            if not known or identity in found or identity in faults or not record.is_unloaded:
                yield from record.index_entries(ready_only=ready_only)
        elif not ready_only:
            failure = record.failure if record is not None else ""
            reason = faults.get(identity) or left_out.get(identity) or failure
            state = "UNAVAILABLE" if reason else ""
            loads = record is not None and record.loads
            if reason or identity in found or loads:  # else it was removed before a version was tried
                yield IndexEntry(name, state=state, reason=reason, namespace=namespace_of(identity))


def explain_absent(required: Iterable[str], found: Collection[str]) -> dict[str, str]:
    """Return the required models that are not in the repository (`found`), each with the most similar name."""
    reasons = {}
    for name in sorted(set(required).difference(found)):
        close = difflib.get_close_matches(name, found, n=1)
        reasons[name] = "not in the repository" + (f", did you mean '{close[0]}'?" if close else "")
    return reasons


def unready_required(
    required: Iterable[str], summaries: Iterable[ModelSummary], absent: Mapping[str, str]
) -> list[ModelSummary]:
    """Return the required models that are not ready.

    Args:
        absent: model that is not in the repository -> the probable reason.
    """
    known: dict[str, ModelSummary] = {}
    for one in sorted(summaries, key=lambda one: one.word == "ready"):
        if one.word != "unloaded" or one.reason:  # else it was removed before a version was tried
            known.setdefault(one.name, one)  # if several models have one name, take the one that is not ready
    found = [
        known.get(name) or ModelSummary(name, "absent", absent.get(name, "not loaded")) for name in sorted(required)
    ]
    return [one for one in found if one.word != "ready"]
