"""Where things lie in the state directory of a device. docs/adr/0021."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ota.documents.names import blob_path


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The paths below `state_dir`.

    Releases and blobs are readable by the group of the server (the directories are setgid), all else by the agent only.
    """

    state_dir: Path

    @property
    def metadata(self) -> Path:
        """TUF's local metadata."""
        return self.state_dir / "metadata"

    @property
    def floors(self) -> Path:
        """The version floors; a copy lies in another place."""
        return self.state_dir / "floors.json"

    @property
    def identity(self) -> Path:
        """The device's key."""
        return self.state_dir / "identity"

    @property
    def partial(self) -> Path:
        """Downloads that are not complete, named by the SHA-256 of the whole file."""
        return self.state_dir / "partial"

    @property
    def stage(self) -> Path:
        """Releases that are being put together."""
        return self.state_dir / "stage"

    @property
    def releases(self) -> Path:
        """`<model>/<release>/` for each release that is whole."""
        return self.state_dir / "releases"

    @property
    def trial(self) -> Path:
        """Model repositories of trials: links to releases."""
        return self.state_dir / "trial"

    @property
    def plans(self) -> Path:
        """TensorRT plans that were built on this device, by key."""
        return self.state_dir / "plans"

    @property
    def journal(self) -> Path:
        """`<bundle>.json`: which release serves, and how far the next one is."""
        return self.state_dir / "journal"

    @property
    def manifests(self) -> Path:
        """`<bundle>.<release>.json`: the verified manifests of releases that are on this device."""
        return self.state_dir / "manifests"

    @property
    def bad(self) -> Path:
        """The releases that failed on this device, and why."""
        return self.state_dir / "bad.json"

    @property
    def history(self) -> Path:
        """What happened, one JSON object a line, bounded."""
        return self.state_dir / "history.jsonl"

    @property
    def outbox(self) -> Path:
        """Reports that could not be delivered yet."""
        return self.state_dir / "outbox"

    @property
    def status(self) -> Path:
        """The one file that edge-serve reads: what `status`, `/ui`, and the metrics show of updates."""
        return self.state_dir / "status.json"

    @property
    def pause(self) -> Path:
        """There while an operator has paused updates."""
        return self.state_dir / "paused.json"

    @property
    def no_space(self) -> Path:
        """There while a write has failed for lack of space: the bytes that were free then."""
        return self.state_dir / "no_space.json"

    @property
    def lock(self) -> Path:
        """Locked by the one edge-ota that changes something."""
        return self.state_dir / "lock"

    def blob(self, sha256: str) -> Path:
        """Return where a whole, verified file lies."""
        return self.state_dir / blob_path(sha256)

    def release(self, model: str, release: int) -> Path:
        """Return the directory that the link in the model repository names."""
        return self.releases / model / str(release)

    def manifest(self, bundle: str, release: int) -> Path:
        """Return where the verified manifest of a release lies."""
        return self.manifests / f"{bundle}.{release}.json"
