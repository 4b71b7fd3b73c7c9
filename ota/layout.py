"""The paths in the state directory of a device. docs/adr/0021."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ota.documents.names import blob_path


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The paths below `state_dir`.

    Releases and blobs are readable by the group of the server (the directories are setgid), all else by the agent only.

    Attributes:
        running: the version of the device image that runs; 0 = this device is not of the image.
    """

    state_dir: Path
    running: int = 0

    @property
    def metadata(self) -> Path:
        """TUF's local metadata."""
        return self.state_dir / "metadata"

    @property
    def floors(self) -> Path:
        """The version floors. Their copy is `AgentSettings.floor_copy`."""
        return self.state_dir / "floors.json"

    @property
    def clock(self) -> Path:
        """The time of the last run, if the system's clock was behind the clock floor in it."""
        return self.state_dir / "clock.json"

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
        """Releases that are being assembled."""
        return self.state_dir / "stage"

    @property
    def releases(self) -> Path:
        """`<model>/<release>/` for each complete release."""
        return self.state_dir / "releases"

    @property
    def trial(self) -> Path:
        """Model repositories of trials: links to releases."""
        return self.state_dir / "trial"

    @property
    def plans(self) -> Path:
        """TensorRT plans that were built on this device, named by their cache key."""
        return self.state_dir / "plans"

    @property
    def plans_system(self) -> Path:
        """The version of the system that all plans on this device were compared with last, and if it is confirmed."""
        return self.plans / "system"

    @property
    def journal(self) -> Path:
        """`<bundle>.json`: the release that serves, and the stage of the next one."""
        return self.state_dir / "journal"

    @property
    def manifests(self) -> Path:
        """`<bundle>.<release>.json`: the verified manifests of releases that are on this device."""
        return self.state_dir / "manifests"

    @property
    def system(self) -> Path:
        """`<version>/` for a version of the device's system that is being fetched or waits for its installation."""
        return self.state_dir / "system"

    @property
    def bad(self) -> Path:
        """The releases that failed on this device, and why."""
        return self.state_dir / "bad.json"

    @property
    def history(self) -> Path:
        """The last events, one JSON object a line."""
        return self.state_dir / "history.jsonl"

    @property
    def outbox(self) -> Path:
        """Reports that could not be delivered yet."""
        return self.state_dir / "outbox"

    @property
    def status(self) -> Path:
        """The status file, which edge-serve reads for `status`, `/ui`, and the metrics of updates."""
        return self.state_dir / "status.json"

    @property
    def pause(self) -> Path:
        """Exists while an operator has paused updates."""
        return self.state_dir / "paused.json"

    @property
    def no_space(self) -> Path:
        """Exists after a write failed for lack of space: the bytes that were free then."""
        return self.state_dir / "no_space.json"

    @property
    def lock(self) -> Path:
        """The lock file of the edge-ota that changes the state."""
        return self.state_dir / "lock"

    def blob(self, sha256: str) -> Path:
        """Return the path of a complete, verified file."""
        return self.state_dir / blob_path(sha256)

    def release(self, model: str, release: int) -> Path:
        """Return the directory of an installed release. Links name it, or a copy for the system that runs."""
        return self.releases / model / str(release)

    def release_copy(self, model: str, release: int, system: int) -> Path:
        """Return the directory of a copy of a release, whose plans are for one version of the system."""
        return self.releases / model / f"{release}@{system}"

    def staged_system(self, version: int) -> Path:
        """Return the directory with the files of a system."""
        return self.system / str(version)

    def manifest(self, bundle: str, release: int) -> Path:
        """Return the path of a verified manifest."""
        return self.manifests / f"{bundle}.{release}.json"
