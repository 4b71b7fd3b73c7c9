"""What the line of an update is given: each part is a Protocol, and `compose` has the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ota.agent.device.identity import Identity
from ota.clock import TimeSource
from ota.decide.probation import ProbationVerdict
from ota.documents.device import DeviceDocument
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.layout import StateLayout
from ota.server.admin_client import ReloadResult
from ota.settings import AgentSettings
from ota.store.journal import Journal

#: bytes that came, and bytes in all
Progress = Callable[[int, int], None]


class TrustedMetadata(Protocol):
    """Signed metadata. `trust.dated.DatedTrust`."""

    def refresh(self) -> None:
        """Fetch and verify the metadata."""

    def target(self, path: str) -> tuple[str, int] | None:
        """Return SHA-256 and length of a target; None = it is not listed."""

    def document(self, path: str, most_bytes: int) -> bytes:
        """Return the verified bytes of a small target. Raises NotFound when it is not listed."""

    def floor(self, name: str, path: str) -> int:
        """Return the floor of a value in a document that this device remembers; 0 = none."""

    def raise_floor(self, name: str, path: str, value: int) -> None:
        """Raise the floor of a value in a document. Raises RolledBack when the value is below it."""

    def expires(self) -> dict[str, float]:
        """Return the seconds that are left to each role."""

    def clock_unset(self) -> bool:
        """Return whether the system's clock is behind a time that is certain."""


class Fetcher(Protocol):
    """Blobs. `fetch.blobs`."""

    def missing(self, entries: Sequence[FileEntry]) -> int:
        """Return the bytes that a fetch would transfer.

        Raises:
            NoSpace: the disk or the quota has no room for them.
        """

    def fetch(self, entries: Sequence[FileEntry], progress: Progress) -> None:
        """Put the blobs of files into the store, verified and durable."""


class Device(Protocol):
    """This device."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def identity(self) -> Identity:
        """Its key."""

    def known_facts(self) -> Mapping[str, str]:
        """Return the facts if this run has asked for them, else {}."""

    def document(self, trust: TrustedMetadata) -> DeviceDocument:
        """Return the signed document of this device."""

    def facts(self) -> Mapping[str, str]:
        """Return the facts that variants are matched with."""

    def fingerprint(self) -> str:
        """Return a digest of the facts; a bad release gets another chance when it changes."""

    def fits_beside(self, memory_bytes: int) -> bool:
        """Return whether so much memory is free beside the release that serves."""


class ReleaseTrial(Protocol):
    """The trial of a release outside the server. `server.trial`."""

    def run(self, repository: Path, models: Sequence[str], limit: float) -> None:
        """Load the models of a repository and run their golden tests.

        Raises:
            TrialFailed: with the figures.
            ServerError: the trial could not be held.
        """


class Builder(Protocol):
    """Builds what a variant needs on this device. `server.build`."""

    def build(self, manifest: Manifest, variant: Variant, directories: Mapping[str, Path]) -> float:
        """Build the plans of a variant into the directories of its models, and return the seconds that it took."""


class ModelServer(Protocol):
    """edge-serve. `server.administration`."""

    def is_there(self) -> bool:
        """Return whether edge-serve answers."""

    def reload(self, models: Sequence[str], *, unload_first: bool = False) -> Mapping[str, ReloadResult]:
        """Have the server look at models at once. Raises ServerError."""


class Probation(Protocol):
    """Watches a new release. `agent.probation`."""

    def baseline(self, models: Sequence[str]) -> Mapping[str, object]:
        """Return figures of the serving release, for the journal; taken before the switch."""

    def judge(self, entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        """Return the verdict, and its reason. `now` is of the monotonic clock: the other one may jump meanwhile."""

    def interval(self) -> float:
        """Return how many seconds to wait between two judgements."""


class ProgressOutput(Protocol):
    """Where the progress of a run is shown."""

    def __call__(self, text: str) -> None:
        """Show a line."""

    def progress(self, text: str, done: int, total: int) -> None:
        """Show how far something is."""


@dataclass(frozen=True, slots=True)
class Components:
    """All of them."""

    layout: StateLayout
    settings: AgentSettings
    clock: TimeSource
    trust: TrustedMetadata
    fetcher: Fetcher
    device: Device
    trial: ReleaseTrial
    builder: Builder
    server: ModelServer
    probation: Probation
    tell: ProgressOutput
