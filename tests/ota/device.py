"""A device for tests of the agent: real files, and small fakes of all parts around them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ota import files
from ota.agent.boot import Boot
from ota.agent.components import Components, Progress, TrustedMetadata
from ota.agent.device.identity import Identity
from ota.agent.update import BundleOutcome, Update, UpdateOptions
from ota.decide.probation import ProbationVerdict
from ota.documents.device import DeviceDocument
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.documents.names import manifest_target, rollout_target
from ota.errors import NotInRepository, OtaError, TrialFailed
from ota.layout import StateLayout
from ota.server.admin_client import ServerReload
from ota.settings import AgentSettings
from ota.store import journal, releases
from ota.store.journal import Journal
from ota.strict_json import to_canonical_json
from tests.ota.bundles import Files, files_of, manifest_bytes, sha256
from tests.ota.clock import NOW, FakeClock

#: hours of the day that are not now, in the zone of this machine
LATER = time.strftime("%H:00-%H:30", time.localtime(NOW + 2 * 3600))


def hours(start: float, end: float) -> str:
    """Return hours of the day that begin and end so many hours after NOW."""
    return "-".join(time.strftime("%H:%M", time.localtime(NOW + one * 3600)) for one in (start, end))


@dataclass
class FakeTrust:
    """A repository's documents, of which a run reads those of its last refresh."""

    documents: dict[str, bytes] = field(default_factory=dict)
    verified: dict[str, bytes] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    code: set[str] = field(default_factory=set)
    failure: OtaError | None = None
    unset: bool = False
    refreshed: bool = False

    def refresh(self) -> None:
        self.refreshed = False
        if self.failure is not None:
            raise self.failure
        self.refreshed, self.verified = True, dict(self.documents)

    def is_refreshed(self) -> bool:
        return self.refreshed

    def target(self, path: str) -> tuple[str, int] | None:
        data = self._verified().get(path)
        return None if data is None else (sha256(data), len(data))

    def document(self, path: str, most_bytes: int) -> bytes:
        found = self._verified()
        if path not in found:
            raise NotInRepository(f"the metadata does not list {path}")
        assert len(found[path]) <= most_bytes
        return found[path]

    def _verified(self) -> dict[str, bytes]:
        if not self.refreshed:
            self.refresh()
        return self.verified

    def floor(self, name: str, path: str) -> int:
        return self.floors.get(name, 0)

    def raise_floor(self, name: str, path: str, value: int) -> None:
        self.floors[name] = max(value, self.floors.get(name, 0))

    def clock_unset(self) -> bool:
        return self.unset

    def expires(self) -> dict[str, float]:
        return {"timestamp": NOW + 3600.0}


@dataclass
class FakeFetcher:
    """Blobs that come through the same file operations as real ones."""

    layout: StateLayout
    blobs: dict[str, bytes] = field(default_factory=dict)
    failures: list[OtaError] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    #: what happens while a download lasts
    slowly: Callable[[], None] = lambda: None

    def missing(self, entries: Sequence[FileEntry]) -> int:
        return sum(one.size for one in entries if not self.layout.blob(one.sha256).exists())

    def fetch(self, entries: Sequence[FileEntry], progress: Progress) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.slowly()
        for one in entries:
            blob, partial = self.layout.blob(one.sha256), self.layout.partial / one.sha256
            if blob.exists():
                continue
            files.make_directory(blob.parent, 0o750)
            with files.wrap_errors(blob):
                with files.create(partial, 0o640) as file:
                    files.write(file, partial, self.blobs[one.sha256])
                    files.fsync(file, partial)
                files.rename(partial, blob)
                files.sync_directory(blob.parent)
            self.fetched.append(one.path)
            progress(one.size, one.size)


class NoSigner:
    """A key that signs nothing."""

    def sign(self, data: bytes) -> bytes:
        raise AssertionError("nothing is signed in this test")


@dataclass
class FakeDevice:
    """A device with room for both releases."""

    identity: Identity = field(default_factory=lambda: Identity(b"", "", NoSigner()))
    name: str = "dev-1"
    known: Mapping[str, str] = field(default_factory=dict)
    room: bool = True
    print: str = "facts-1"
    limits: list[float] = field(default_factory=list)

    def document(self, trust: TrustedMetadata) -> DeviceDocument:
        return DeviceDocument("dev-1", "plant", "prod")

    def facts(self) -> Mapping[str, str]:
        return {"arch": "x86_64", "edge_serve": "0.1.0"}

    def known_facts(self) -> Mapping[str, str]:
        return self.known

    def fingerprint(self, limit: float = 120.0) -> str:
        self.limits.append(limit)
        return self.print

    def fits_beside(self, memory_bytes: int) -> bool:
        return self.room


@dataclass
class FakeTrial:
    """A trial that looks at the files, and knows which models are bad."""

    bad: set[tuple[str, int]] = field(default_factory=set)
    tried: list[tuple[str, int]] = field(default_factory=list)
    failure: BaseException | None = None

    def run(self, repository: Path, models: Sequence[str], limit: float) -> None:
        if self.failure is not None:
            raise self.failure
        assert sorted(one.name for one in repository.iterdir()) == list(models)
        for model in models:
            release = check_whole(repository / model)
            self.tried.append((model, release))
            if (model, release) in self.bad:
                raise TrialFailed(f"the golden test of {model} {release} failed: OUTPUT0[3] is 0.7, expected 0.1")


class FakeBuilder:
    """Builds nothing."""

    def build(self, manifest: Manifest, variant: Variant, directories: Mapping[str, Path]) -> float:
        return 0.0


def check_whole(path: Path) -> int:
    """Return the release that a link names; its files are those of its record."""
    directory = Path(os.readlink(path))
    record = releases.read_record(directory)
    assert record is not None, f"{path} -> {directory} has no record"
    for name, found in record.files.items():
        assert files.sha256_of(directory / name) == found, f"{directory / name} is damaged"
    return record.release


@dataclass
class FakeServer:
    """edge-serve in mode none: it loads what changed when it is asked to look, and refuses releases that are bad."""

    repository: Path
    serving: dict[str, int] = field(default_factory=dict)
    bad: set[tuple[str, int]] = field(default_factory=set)
    up: bool = True
    reloads: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)
    failures: list[OtaError] = field(default_factory=list)
    #: where what is served outlives the process of the agent
    store: Path | None = None

    def is_there(self) -> bool:
        return self.up

    def start(self) -> None:
        """Load all models, as at a boot."""
        self.serving = {one.name: check_whole(one) for one in self.repository.iterdir() if one.name[0] != "."}

    def reload(
        self, models: Sequence[str], *, removed: Sequence[str] = (), unload_first: bool = False
    ) -> Mapping[str, ServerReload]:
        self.reloads.append((tuple(models), unload_first))
        if self.failures:
            raise self.failures.pop(0)
        found = {model: self._load(model, unload_first) for model in (*models, *removed)}
        if self.store:
            fresh = self.store.with_suffix(".new")  # a kill of the process between two writes must not tear it
            fresh.write_text(json.dumps(self.serving))
            fresh.replace(self.store)
        return found

    def remember(self) -> None:
        """Serve what was served when another process was asked last."""
        assert self.store is not None
        self.serving = json.loads(self.store.read_text())

    def _load(self, model: str, unload_first: bool) -> ServerReload:
        if not (self.repository / model).is_symlink():
            self.serving.pop(model, None)
            return ServerReload(())
        release = check_whole(self.repository / model)
        if (model, release) in self.bad:
            if unload_first:
                self.serving.pop(model, None)
            old = self.serving.get(model)
            return ServerReload((str(old),) if old else (), f"the golden test of {model} {release} failed")
        self.serving[model] = release
        return ServerReload((str(release),))


@dataclass
class FakeProbation:
    """Verdicts in order; GOOD when there are none left."""

    verdicts: list[tuple[ProbationVerdict, str]] = field(default_factory=list)

    def baseline(self, models: Sequence[str]) -> Mapping[str, object]:
        return {"models": list(models)}

    def judge(self, entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        return self.verdicts.pop(0) if self.verdicts else (ProbationVerdict.GOOD, "500 requests")

    def interval(self) -> float:
        return 2.0


@dataclass
class FakeTell:
    """Lines that were shown."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str, done: int, total: int) -> None:
        return


class Device:
    """A device below a directory: `state/` and `models/`."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root = root
        self.layout = StateLayout(root / "state")
        self.repository = root / "models"
        self.repository.mkdir(parents=True, exist_ok=True)
        self.clock, self.trust, self.facts = FakeClock(), FakeTrust(), FakeDevice()
        self.fetcher, self.server = FakeFetcher(self.layout), FakeServer(self.repository)
        self.trial, self.probation, self.tell = FakeTrial(), FakeProbation(), FakeTell()
        self.settings = AgentSettings(
            state_dir=self.layout.state_dir,
            model_repository=self.repository,
            **settings,  # type: ignore[arg-type]  # what a test sets
        )
        self.serial = 0
        self.wishes: dict[str, dict[str, object]] = {}

    def parts(self) -> Components:
        return Components(
            layout=self.layout, settings=self.settings, clock=self.clock, device=self.facts, server=self.server,
            tell=self.tell, trust=self.trust, fetcher=self.fetcher, trial=self.trial, builder=FakeBuilder(),
            probation=self.probation,
        )  # fmt: skip

    def boot(self) -> list[str]:
        """Run the boot step, then start edge-serve; the lines that were said."""
        lines: list[str] = []
        Boot(self.settings, NOW, lines.append).run()
        self.server.start()
        return lines

    def publish(
        self, bundle: str = "det", release: int = 17, models: Mapping[str, Files] | None = None, **members: object
    ) -> None:
        """Sign a release, and have the fleet want it."""
        models = models if models is not None else {bundle: files_of(bundle, release)}
        self.trust.documents[manifest_target("vision", bundle, release)] = manifest_bytes(
            bundle, release, models, **members
        )
        self.fetcher.blobs.update((sha256(data), data) for found in models.values() for data in found.values())
        self.want(bundle, release)

    def want(self, bundle: str, release: int, **members: object) -> None:
        """Change the rollout document."""
        self.serial += 1
        steps = [{"ring": "prod", "percent": 100}]
        self.wishes[bundle] = {"family": "vision", "want": release, "steps": steps, **members}
        document = {"schema": 1, "fleet": "plant", "serial": self.serial, "models": self.wishes}
        self.trust.documents[rollout_target("plant")] = to_canonical_json(document)

    def run(self, **options: object) -> dict[str, BundleOutcome]:
        """Run the line once; its outcomes. An error of a bundle is raised."""
        found = self.outcomes(**options)
        for one in found.values():
            if one.error is not None:
                raise one.error
        return found

    def outcomes(self, **options: object) -> dict[str, BundleOutcome]:
        """Run the line once."""
        line = Update(self.parts(), UpdateOptions(**options))  # type: ignore[arg-type]  # what a test sets
        return {one.bundle: one for one in line.run()}

    def journal(self, bundle: str = "det") -> Journal:
        found = journal.read(self.layout, bundle)
        assert found is not None
        return found


def device_with(folder: Path, *releases: int) -> Device:
    """Return a device that has run these releases of det, and serves the last one."""
    found = Device(folder)
    for release in releases:
        found.publish(release=release)
        assert found.run()["det"].release == release
    return found
