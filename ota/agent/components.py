"""The interfaces that an update works with. Each is a Protocol; `compose` creates the real components."""

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
from ota.server.admin_client import ServerReload
from ota.server.doctor import DOCTOR_SECONDS
from ota.settings import AgentSettings
from ota.store.journal import Journal

#: received bytes, and total bytes
Progress = Callable[[int, int], None]


class TrustedMetadata(Protocol):
    """Signed metadata and documents. Implemented by `trust.expiry.ExpiryCheckedTrust`."""

    def refresh(self) -> None:
        """Fetch and verify the metadata."""

    def is_refreshed(self) -> bool:
        """Return whether this run has verified the metadata, so that documents need no refresh."""

    def target(self, path: str) -> tuple[str, int] | None:
        """Return the SHA-256 and length of a target; None = not listed."""

    def document(self, path: str, most_bytes: int) -> bytes:
        """Return the verified bytes of a small target. Raises NotInRepository if it is not listed."""

    def floor(self, name: str, path: str) -> int:
        """Return the floor that this device has stored for a value of a document; 0 = none."""

    def raise_floor(self, name: str, path: str, value: int) -> None:
        """Raise the floor of a value in a document. Raises RolledBack when the value is below it."""

    def expires(self) -> dict[str, float]:
        """Return when each role expires (epoch)."""

    def clock_unset(self) -> bool:
        """Return whether the system clock is behind a time that is certain."""


class Fetcher(Protocol):
    """Downloads blobs. Implemented by `fetch.blobs.BlobFetcher`."""

    def missing(self, entries: Sequence[FileEntry]) -> int:
        """Return the bytes that a fetch would transfer.

        Raises:
            NoSpace: the disk or the quota has no room for them.
        """

    def fetch(self, entries: Sequence[FileEntry], progress: Progress) -> None:
        """Put the blobs of files into the store, verified and durable."""


class Hardware(Protocol):
    """Facts of this device that it finds by itself. Implemented by `device.facts.ThisHardware`."""

    def known_facts(self) -> Mapping[str, str]:
        """Return the facts if this run has read them, else {}."""

    def facts(self) -> Mapping[str, str]:
        """Return the facts that variants are matched with."""

    def fingerprint(self, limit: float = DOCTOR_SECONDS) -> str:
        """Return a digest of the facts, "" = unknown after `limit` seconds. Another one is another chance for a bad
        release.
        """

    def fits_beside(self, memory_bytes: int) -> bool:
        """Return whether `memory_bytes` are available beside the serving release."""


class Device(Hardware, Protocol):
    """Identity and facts of this device. Implemented by `device.facts.ThisDevice`."""

    @property
    def name(self) -> str:
        """The name of this device."""

    @property
    def identity(self) -> Identity:
        """The key pair of this device."""

    def document(self, trust: TrustedMetadata) -> DeviceDocument:
        """Return the signed document of this device."""


class ReleaseTrial(Protocol):
    """Tests a release outside the server. Implemented by `server.trial.UnitTrial`."""

    def run(self, repository: Path, models: Sequence[str], limit: float) -> None:
        """Load the models of a repository and run their golden tests.

        Raises:
            TrialFailed: with the figures.
            ServerError: the trial could not be held.
        """


class Builder(Protocol):
    """Builds the plans of a variant on this device. Implemented by `plan_builder.PlanBuilder`."""

    def build(self, manifest: Manifest, variant: Variant, directories: Mapping[str, Path]) -> float:
        """Build the plans of a variant into the directories of its models. Return the seconds that the builds took."""


class ModelServer(Protocol):
    """Client of edge-serve. Implemented by `server.admin_client.AdminClient`."""

    def is_there(self) -> bool:
        """Return whether edge-serve answers and can load models."""

    def reload(
        self, models: Sequence[str], *, removed: Sequence[str] = (), unload_first: bool = False
    ) -> Mapping[str, ServerReload]:
        """Make the server load models that changed, and unload those that were removed, at once. Raises ServerError."""


class Probation(Protocol):
    """Watches a new release. Implemented by `probation.StatusProbation`."""

    def baseline(self, models: Sequence[str]) -> Mapping[str, object]:
        """Return statistics of the serving release for the journal, taken before the switch."""

    def judge(self, entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        """Return the verdict and its reason. `now` is the time of the monotonic clock."""

    def interval(self) -> float:
        """Return the seconds between two judgements."""


class ProgressOutput(Protocol):
    """Receives the progress of a run."""

    def __call__(self, text: str) -> None:
        """Show a line."""

    def progress(self, text: str, done: int, total: int) -> None:
        """Show the progress of a download."""


@dataclass(frozen=True, slots=True)
class LocalComponents:
    """The components that act on this disk and on edge-serve. A way back has these only: no network, trust, or key."""

    layout: StateLayout
    settings: AgentSettings
    clock: TimeSource
    device: Hardware
    server: ModelServer
    tell: ProgressOutput


@dataclass(frozen=True, slots=True)
class Components(LocalComponents):
    """All components of a run."""

    device: Device
    trust: TrustedMetadata
    fetcher: Fetcher
    trial: ReleaseTrial
    builder: Builder
    probation: Probation
