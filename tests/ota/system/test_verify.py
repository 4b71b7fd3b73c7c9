"""`edge-ota verify-system`: the root side trusts nothing that the agent may write. Real keys, real TUF metadata."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
from pathlib import Path

import pytest

from ota.cli import main
from ota.layout import StateLayout
from ota.store import directories, system_stage
from ota.trust.client import TrustClient
from ota.trust.floors import Floors
from tests.ota.simulator import Repository
from tests.ota.system.root_side import ARCH, ImageDevice

FILES = {"root": ".root", "verity": ".verity", "uki": ".efi"}


class Staged:
    """A device of the image on which the agent has staged version 2."""

    def __init__(self, base: Path) -> None:
        self.base, self.image = base, ImageDevice(base / "root")
        self.layout = StateLayout(base / "state")
        directories.prepare(self.layout)
        self.repository = Repository(now=time.time())
        (base / "root.json").write_bytes(self.repository.root(1))
        self.folder = self.layout.staged_system(2)
        self.publish()
        self.stage()

    def publish(self, version: int = 2, **members: object) -> None:
        """Sign a version."""
        files = {
            kind: {"path": f"edge_{version}{ending}", **self.entry(f"{kind} {version}".encode() * 50)}
            for kind, ending in FILES.items()
        }
        document = {
            "schema": 1, "product": "edge", "profile": "base", "arch": ARCH, "version": version, "files": files,
            "root_hash": "0" * 64, **members,
        }  # fmt: skip
        self.target = f"system/edge/base-{ARCH}.{version}.json"
        self.repository.add_document(self.target, document)
        self.repository.publish()

    def entry(self, data: bytes) -> dict[str, object]:
        """Add a blob; its hash and length."""
        return {"sha256": self.repository.add_blob(data), "bytes": len(data)}

    def stage(self, version: int = 2) -> None:
        """Refresh and stage as the agent does."""
        floors = Floors([self.layout.floors])
        trust = TrustClient(self.layout.metadata, self.repository.root(1), self.repository, floors, self.repository.now)
        trust.refresh()
        data = trust.document(self.target, 10**6)
        self.folder = self.layout.staged_system(version)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"edge_{version}.json").write_bytes(data)
        for entry in json.loads(data)["files"].values():
            blob = self.repository.files[f"blobs/sha256/{entry['sha256'][:2]}/{entry['sha256']}"]
            (self.folder / entry["path"]).write_bytes(blob)

    def verify(self, version: int = 2, status: int = 0) -> str:
        """Run the command; what it printed."""
        flags = {
            "state-dir": self.layout.state_dir, "root": self.base / "root.json", "system-root": self.image.root,
            "config": "/dev/null",
        }  # fmt: skip
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main(["verify-system", str(version), *(f"--{name}={value}" for name, value in flags.items())])
        assert found == status, f"{found}: {out.getvalue()}{err.getvalue()}"
        assert not (out.getvalue() and status)
        return out.getvalue() or err.getvalue()


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    """Version 2 is staged, version 1 runs."""
    return Staged(tmp_path)


def test_the_signed_document_is_printed(staged: Staged) -> None:
    document = json.loads(staged.verify())
    assert (document["version"], document["arch"]) == (2, ARCH)
    assert document["files"]["uki"]["path"] == "edge_2.efi"
    assert json.loads(staged.verify()) == document
    assert system_stage.staged(staged.layout) is not None


def test_a_device_is_given_to_a_publisher_that_started_anew(staged: Staged) -> None:
    """The agent and the root side have floors of their own, and the agent's metadata is a mirror for the root side."""
    staged.repository.publish_root()
    staged.stage()
    staged.verify()
    staged.repository = Repository(now=time.time())
    staged.publish(3)
    (staged.base / "root.json").write_bytes(staged.repository.root(1))
    staged.stage(3)
    assert json.loads(staged.verify(3))["version"] == 3


def test_the_root_side_follows_no_agent_to_another_publisher(staged: Staged) -> None:
    """Only the factory root, which root wrote, names the publisher."""
    staged.repository.publish_root()
    staged.stage()
    staged.verify()
    staged.repository = Repository(now=time.time())
    staged.publish(3)
    shutil.rmtree(staged.layout.metadata)
    staged.layout.floors.unlink()
    staged.layout.metadata.mkdir()
    staged.stage(3)
    assert "signed by 0/" in staged.verify(3, status=4)


def test_a_changed_file_is_refused(staged: Staged) -> None:
    for path in sorted(staged.folder.glob("edge_2.[rve]*")):
        good = path.read_bytes()
        for bad in (good[:-1], good + b"!", b"R" + good[1:], b""):
            path.write_bytes(bad)
            assert f"{path} has {len(bad)} bytes" in staged.verify(status=4)
        path.unlink()
        assert "edge-ota system apply" in staged.verify(status=5)
        path.symlink_to("/dev/zero")
        staged.verify(status=5)
        path.unlink()
        path.write_bytes(good)
    staged.verify()


def test_another_document_is_refused(staged: Staged) -> None:
    path = staged.folder / "edge_2.json"
    path.write_bytes(path.read_bytes().replace(b'"root_hash": "00', b'"root_hash": "01'))
    staged.verify(status=4)
    path.unlink()
    staged.verify(status=3)


def test_no_symbolic_link_is_followed(staged: Staged) -> None:
    for path in (staged.folder / "edge_2.json", staged.layout.metadata / "timestamp.json"):
        elsewhere = staged.base / path.name
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        assert "symbolic link" in staged.verify(status=3)
        path.unlink()
        elsewhere.rename(path)


def test_settings_that_the_agent_may_write_do_not_count(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = staged.base / "edge-ota.conf"
    settings.write_text(f"ROOT={staged.base / 'root.json'}\n")
    monkeypatch.setenv("EDGE_OTA_CONFIG", str(settings))
    monkeypatch.setenv("EDGE_OTA_ROOT", str(staged.base / "root.json"))
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        status = main(["verify-system", "2", f"--system-root={staged.image.root}", f"--config={settings}"])
    assert status == 2
    assert "/etc/edge-ota/root.json" in err.getvalue()


def test_an_unsigned_version_is_refused(staged: Staged) -> None:
    metadata = staged.layout.metadata / "system.json"
    found = json.loads(metadata.read_bytes())
    found["signatures"] = found["signatures"][:1]
    metadata.write_text(json.dumps(found))
    staged.verify(status=4)


def test_one_key_of_three_does_not_suffice(staged: Staged) -> None:
    staged.repository.signers["system"] = staged.repository.signers["system"][:1]
    staged.publish(3)
    with pytest.raises(Exception, match="system"):
        staged.stage(3)
    staged.repository.dump(staged.base / "forged")
    for path in (staged.base / "forged" / "metadata").glob("*.json"):
        name = path.name.partition(".")[2]
        if name in ("system.json", "snapshot.json") or path.name == "timestamp.json":
            (staged.layout.metadata / (path.name if path.name == "timestamp.json" else name)).write_bytes(
                path.read_bytes()
            )
    staged.verify(3, status=4)


def test_keys_of_another_root_are_refused(staged: Staged) -> None:
    (staged.base / "root.json").write_bytes(Repository(now=time.time()).root(1))
    staged.verify(status=4)


def test_old_metadata_is_refused_after_newer_was_seen(staged: Staged) -> None:
    old = {path: path.read_bytes() for path in staged.layout.metadata.glob("*.json") if not path.is_symlink()}
    staged.verify()
    staged.publish(3)
    staged.stage(3)
    staged.verify(3)
    for path, data in old.items():
        path.write_bytes(data)
    assert "edge-ota" in staged.verify(2, status=4)


def test_a_version_that_is_not_newer_is_refused(staged: Staged) -> None:
    for running in (2, 3):
        staged.image.boots(running)
        assert f"not newer than {running}" in staged.verify(status=4)


def test_a_device_of_another_kind_is_refused(staged: Staged) -> None:
    staged.image.boots(1, profile="nvidia")
    assert f"system/edge/nvidia-{ARCH}.2.json" in staged.verify(status=6)
    staged.image.write("etc/os-release", 'IMAGE_ID="other"\nIMAGE_VERSION=1\n')
    staged.verify(status=6)
    staged.image.write("etc/os-release", "ID=debian\n")
    assert "does not run the device image" in staged.verify(status=6)


def test_a_version_that_needs_a_newer_one_is_refused(staged: Staged) -> None:
    staged.publish(3, needs_version=2)
    staged.stage(3)
    assert "needs version 2 to install it, and 1 runs" in staged.verify(3, status=6)


def test_expired_metadata_is_refused(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("ota.clock.time.time", lambda: now + 2 * 86400)
    staged.verify()
    monkeypatch.setattr("ota.clock.time.time", lambda: now + 4 * 86400)
    assert "expired" in staged.verify(status=4)


def test_a_metadata_directory_without_files_is_one_sentence(staged: Staged) -> None:
    for path in staged.layout.metadata.glob("*.json"):
        path.unlink()
    assert staged.verify(status=3).count("\n") == 1
