"""A reader at any moment of a publication sees a state that verifies; an interrupted publication is completed."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ota import files
from ota.documents.manifest import read_manifest
from ota.documents.names import blob_path, manifest_target, rollout_target
from ota.documents.rollout import read_rollout
from tests.ota.publish.publisher import Publisher, device


class PowerCut(BaseException):
    """Ends a publication."""


def read_all(publisher: Publisher, name: str, root: bytes) -> None:
    """Read as a device: metadata, the rollout, each manifest, and its blobs."""
    trust = device(publisher, name, time.time(), root)
    found = set()
    for release in (1, 2):
        if trust.target(manifest_target("det", "det", release)) is not None:
            manifest = read_manifest(trust.document(manifest_target("det", "det", release), 10**6), "det", release)
            found.add(release)
            for _, entry in manifest.every_file():
                assert (publisher.repository / blob_path(entry.sha256)).stat().st_size == entry.size
    if trust.target(rollout_target("a")) is not None:
        assert read_rollout(trust.document(rollout_target("a"), 10**6), "a").models["det"].want in found


def changes(publisher: Publisher) -> list[Callable[[], object]]:
    """Return publications of every kind."""

    def rollout() -> None:
        publisher.do("rollout start", "a", "det", 2, "lab=100")

    rotations = [
        lambda role=role: publisher.do("rotate", role) for role in ("timestamp", "snapshot", "targets", "root")
    ]
    delegated = [lambda role=role: publisher.do("rotate", role) for role in ("models-det", "rollout")]
    return [
        lambda: publisher.release(2),
        rollout,
        *rotations,
        *delegated,
        lambda: publisher.do("refresh"),
        lambda: publisher.do("family", "seg"),
    ]


@pytest.mark.fault("N10")
def test_a_reader_between_any_two_file_operations(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    published.do("rollout start", "a", "det", 1, "lab=100")
    root = (published.dir / "root.json").read_bytes()
    read_all(published, "old", root)
    seen = []

    def reading(operation: files.DiskOperation) -> None:
        if operation.kind == "rename" and operation.target.startswith(str(published.repository)):
            seen.append(Path(operation.target).name)
            monkeypatch.setattr(files, "point", lambda operation: None)
            read_all(published, "old", root)
            read_all(published, f"new-{len(seen)}", root)
            monkeypatch.setattr(files, "point", reading)

    for change in changes(published):
        monkeypatch.setattr(files, "point", reading)
        change()
        monkeypatch.setattr(files, "point", lambda operation: None)
        read_all(published, "old", root)
    assert len(seen) > 30
    assert seen[-1] == "timestamp.json"


def test_files_are_copied_to_a_web_server_in_the_order_of_the_page(published: Publisher, tmp_path: Path) -> None:
    """docs/ota_publish.md, with rsync's four calls as four copies."""
    root = (published.dir / "root.json").read_bytes()
    web = Publisher(tmp_path / "web")

    def copy(pattern: str, without: str = "") -> None:
        for path in published.repository.glob(pattern):
            if path.is_file() and not (without and re.search(without, path.name)):
                target = web.repository / path.relative_to(published.repository)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        if (web.repository / "metadata/timestamp.json").exists():
            read_all(web, "old", root)
            read_all(web, f"new-{len(list(web.base.iterdir()))}", root)

    for change in [lambda: None, *changes(published)]:
        change()
        copy("targets/**/*")
        copy("blobs/**/*")
        copy("metadata/*", r"timestamp|root")
        copy("metadata/timestamp.json")
        copy("metadata/*")


def test_a_publication_that_is_cut_anywhere_is_completed_by_the_next(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.do("rollout start", "a", "det", 1, "lab=100")
    root = (published.dir / "root.json").read_bytes()
    cuts = 0
    for at in range(0, 200, 3):
        left = at

        def cut(operation: files.DiskOperation) -> None:
            nonlocal left
            left -= str(published.dir) in operation.path
            if left < 0:
                raise PowerCut

        monkeypatch.setattr(files, "point", cut)
        try:
            published.do("rotate", "timestamp")
            done = True
        except PowerCut:
            done = False
            cuts += 1
        monkeypatch.setattr(files, "point", lambda operation: None)
        read_all(published, f"new-{at}", root)
        read_all(published, "old", root)
        published.do("refresh")
        read_all(published, "old", root)
        if done:
            break
    assert cuts > 5
    published.do("verify")


@pytest.mark.fault("T7", "T12")
def test_each_file_of_metadata_is_named_by_its_hash(published: Publisher) -> None:
    """So that a stolen key cannot put another file under the name of a role, nor a server mix two publications."""
    published.do("rotate", "rollout")
    folder = published.repository / "metadata"
    timestamp = json.loads((folder / "timestamp.json").read_bytes())["signed"]
    (name, meta), *rest = timestamp["meta"].items()
    assert rest == []
    snapshot = (folder / f"{meta['version']}.{name}").read_bytes()
    found = {name: meta, **json.loads(snapshot)["signed"]["meta"]}

    assert sorted(found) == ["engines.json", "models-det.json", "rollout.json", "snapshot.json", "targets.json"]
    for name, meta in found.items():
        data = (folder / f"{meta['version']}.{name}").read_bytes()
        assert (meta["length"], meta["hashes"]) == (len(data), {"sha256": hashlib.sha256(data).hexdigest()})
