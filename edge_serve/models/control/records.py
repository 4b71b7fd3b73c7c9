"""What the registry remembers of a model: its versions, and what it was loaded from."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edge_serve.messages.metadata import IndexEntry
from edge_serve.models.load.loading import LoadPlan
from edge_serve.models.repository.repository import FoundModel, namespace_of, plain_name
from edge_serve.models.versions.lifecycle import VersionEvent, VersionState, after
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.source import Readiness


@dataclass(slots=True)
class VersionRecord:
    """A version that was asked for at least once; `served` while it answers.

    Attributes:
        directory: of the version that failed to load, in the repository; None = its files came with a load request.
        dismissed: it failed, and no longer counts for the readiness of the server.
    """

    version: int
    state: VersionState = VersionState.LOADING
    reason: str = ""
    served: Served | None = None
    directory: Path | None = None
    dismissed: bool = False

    def move(self, event: VersionEvent, reason: str = "") -> None:
        """One step through the table."""
        self.state = after(self.state, event)
        self.reason = reason
        self.directory, self.dismissed = None, False

    @property
    def failed(self) -> bool:
        """It failed to load, and that counts."""
        return self.state is VersionState.GONE and self.reason != "unloaded" and not self.dismissed

    def news(self) -> str:
        """Why it is where it is; of one that serves, what became of its workers lately."""
        opened = self.served.opened if self.served is not None else None
        return self.reason or (opened.trouble() if opened is not None else "")

    @property
    def refusal(self) -> str:
        """Why a version whose workers are there is not ready; "" = it is, or does not serve."""
        return self.served.refusal if self.served is not None and not self.served.healthy else ""

    @property
    def settled(self) -> bool:
        """It serves and is healthy, or is being exchanged, or was unloaded, or its failure no longer counts."""
        if self.state is VersionState.READY:
            return self.served is not None and (self.served.healthy or self.served.exchanging)
        return self.state is VersionState.GONE and not self.failed


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model in a word, for people: `ready`, `unready` (it says so itself), `restarting` (it has no worker),
    `loading`, `failed`, `unloading` or `unloaded`.

    Attributes:
        serves: one of its versions answers requests, whatever has become of another.
    """

    name: str
    word: str
    reason: str = ""
    serves: bool = False


_WORDS = {VersionState.LOADING: "loading", VersionState.READY: "ready", VersionState.DRAINING: "unloading"}
#: of several versions the first of these tells most
_FIRST = ("failed", "unready", "restarting", "loading", "ready", "unloading", "unloaded")


@dataclass(slots=True)
class ModelRecord:
    """A model that was asked for at least once.

    Attributes:
        name: what the registry calls it.
        plan: what the serving versions were loaded from; an ensemble that waits for a member has one too.
        explicit: it was asked for by its own name, not only as a member of an ensemble.
        barren: a load found no version of it to try, and it was not unloaded since.
    """

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    plan: LoadPlan | None = None
    explicit: bool = False
    barren: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def settled(self) -> bool:
        """Each of its versions is, or drains beside one that serves; and there was one to try."""
        if not self.versions:
            return not self.barren
        counted = [version for version in self.versions.values() if not version.settled]
        return not counted or (bool(self.ready()) and all(one.state is VersionState.DRAINING for one in counted))

    def ready(self) -> list[VersionRecord]:
        """Versions that serve, ascending."""
        return [record for _, record in sorted(self.versions.items()) if record.state is VersionState.READY]

    def failed(self) -> list[VersionRecord]:
        """Versions whose failure to load counts."""
        return [record for record in self.versions.values() if record.failed]

    def dismiss(self, wanted: Collection[int] = ()) -> None:
        """Let failures count no more, except those of `wanted` versions. As in Triton, the index still shows them."""
        for version in self.failed():
            version.dismissed = version.version not in wanted

    def index_entries(self, *, ready_only: bool) -> list[IndexEntry]:
        """Its lines of the repository index."""
        return [
            IndexEntry(
                plain_name(self.name), str(version.version), version.state.value, version.news(), version.dismissed
            )
            for _, version in sorted(self.versions.items())
            if not ready_only or version.state is VersionState.READY
        ]

    def readiness(self) -> Iterator[tuple[str, bool]]:
        """Yield whether each version that serves or should can answer; without a version to try, "" and False."""
        for _, version in sorted(self.versions.items()):
            if version.state in (VersionState.LOADING, VersionState.READY) or version.failed:
                yield str(version.version), version.state is VersionState.READY and version.settled
        if not self.versions and (self.barren or self.plan is not None or self.lock.locked()):
            yield "", False

    def standing(self) -> ModelSummary:
        """How the whole model is."""
        found = [
            (_word(version), version.reason or version.refusal, version.version) for version in self.versions.values()
        ]
        if not found:  # it waits for its turn, or an ensemble for a member
            found = [("loading" if self.lock.locked() else "failed", "", 0)]
        word, reason, number = min(found, key=lambda one: _FIRST.index(one[0]))
        serves = any(version.settled for version in self.ready())
        if word == "failed" and serves:
            reason = f"version {number}: {reason}"
        return ModelSummary(plain_name(self.name), word, reason, serves)


def _word(version: VersionRecord) -> str:
    if version.state is VersionState.READY and not version.settled:
        opened = version.served.opened if version.served is not None else None
        return "unready" if opened is not None and opened.complete else "restarting"
    if version.state is VersionState.GONE:
        return "unloaded" if version.settled else "failed"
    return _WORDS[version.state]


def readiness(models: Mapping[str, ModelRecord], untried: Collection[str]) -> Iterator[Readiness]:
    """Yield whether each version that serves or should can answer. Models may come and go meanwhile.

    A version that was unloaded, or whose failure no longer counts, is none of them.

    Args:
        models: those that were asked for at least once.
        untried: those of which no version could be tried.
    """
    for identity in sorted({*models, *untried}):
        record = models.get(identity)
        states = list(record.readiness()) if record is not None else []
        if not states and identity in untried:
            states = [("", False)]
        namespace = namespace_of(identity) or None
        for version, ready in states:
            yield Readiness(plain_name(identity), version, ready, namespace)


def repository_index(
    found: Mapping[str, FoundModel],
    models: Mapping[str, ModelRecord],
    reasons: Mapping[str, str],
    faults: Mapping[str, str],
    *,
    ready_only: bool,
) -> Iterator[IndexEntry]:
    """Yield the lines of all models, by name. Models may come and go meanwhile.

    Args:
        found: what lies on disk; models: what was asked for at least once.
        reasons: model -> why nothing of it could be tried.
        faults: entry of a repository that cannot be read -> why.
    """
    for identity in sorted(found.keys() | models.keys() | faults.keys()):
        name = plain_name(identity)
        if identity in found and found[identity].ambiguous:
            yield IndexEntry(name, state="UNAVAILABLE", reason="model appears in two or more repositories")
        elif identity in models and models[identity].versions:
            yield from models[identity].index_entries(ready_only=ready_only)
        elif not ready_only:
            reason = faults.get(identity) or reasons.get(identity, "")
            yield IndexEntry(name, state="UNAVAILABLE" if reason else "", reason=reason)
