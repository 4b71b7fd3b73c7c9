"""Small releases for tests: manifests, their blobs in a device's store, and a device with a release in place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ota.documents.manifest import Manifest, read_manifest
from ota.documents.names import blob_path
from ota.layout import StateLayout
from ota.store import directories, journal, links, releases
from ota.strict_json import to_canonical_json

Files = Mapping[str, bytes]


def sha256(data: bytes) -> str:
    """Return the name of a blob."""
    return hashlib.sha256(data).hexdigest()


def files_of(model: str, release: int, *, size: int = 0) -> dict[str, bytes]:
    """Return the files of a model that differ from release to release."""
    weights = f"weights of {model} {release}".encode()
    return {
        "config.pbtxt": b'platform: "onnxruntime_onnx"\n',
        f"{release}/model.onnx": weights.ljust(size, b"."),
    }


def manifest_bytes(
    bundle: str = "det", release: int = 17, models: Mapping[str, Files] | None = None, **members: object
) -> bytes:
    """Return a manifest with one variant that fits every device; `members` replace its members."""
    models = models if models is not None else {bundle: files_of(bundle, release)}
    entries = {
        model: {"files": [{"path": path, "sha256": sha256(data), "bytes": len(data)} for path, data in found.items()]}
        for model, found in models.items()
    }
    document = {
        "schema": 1,
        "bundle": bundle,
        "family": "vision",
        "release": release,
        "release_counter": release,
        "models": entries,
        "variants": [{"id": "onnx", "kind": "onnx", "priority": 90}],
    }
    return to_canonical_json({**document, **members})


def manifest(bundle: str = "det", release: int = 17, models: Mapping[str, Files] | None = None) -> Manifest:
    """Return the manifest of `manifest_bytes`."""
    return read_manifest(manifest_bytes(bundle, release, models), bundle, release)


def put_blobs(root: Path, models: Mapping[str, Files]) -> None:
    """Write the files of models as blobs below a repository or a state directory."""
    for found in models.values():
        for data in found.values():
            path = root / blob_path(sha256(data))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def install(
    layout: StateLayout, bundle: str = "det", release: int = 17, models: Mapping[str, Files] | None = None
) -> Manifest:
    """Put a release in place whose blobs are made for it."""
    models = models if models is not None else {bundle: files_of(bundle, release)}
    directories.prepare(layout)
    put_blobs(layout.state_dir, models)
    data = manifest_bytes(bundle, release, models)
    layout.manifest(bundle, release).write_bytes(data)
    found = read_manifest(data, bundle, release)
    releases.install(layout, found, found.variants[0], sha256(data))
    return found


def serve(
    layout: StateLayout,
    repository: Path,
    bundle: str = "det",
    release: int = 16,
    models: Mapping[str, Files] | None = None,
) -> None:
    """Install a release and make it the active one."""
    found = install(layout, bundle, release, models)
    repository.mkdir(exist_ok=True)
    old = journal.read(layout, bundle)
    previous, known = (old.active, old.models) if old else (0, {})
    entry = journal.Journal(bundle, {**known, release: tuple(sorted(found.models))}, release, previous)
    journal.write(layout, entry)
    links.apply(layout, repository, entry.wanted_links())
