"""Shared by the tests of fetch/: blobs with their entries, and a fetcher."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ota.documents.manifest import FileEntry
from ota.documents.names import blob_path
from ota.fetch.blobs import BlobFetcher
from ota.fetch.http import HttpOptions, HttpSource
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.source import RepositorySource
from ota.strict_json import to_canonical_json
from tests.ota.clock import FakeClock
from tests.ota.faulty_server import Content

#: seconds of silence, where a test waits for its end
SHORT = 0.3


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def entry_of(data: bytes, chunk: int = 0, path: str = "1/model.onnx") -> FileEntry:
    chunks = tuple(sha256(data[start : start + chunk]) for start in range(0, len(data), chunk)) if chunk else ()
    return FileEntry(path, sha256(data), len(data), chunk, chunks)


def repository(*files: tuple[bytes, int]) -> dict[str, bytes | Content]:
    """Return what a repository has for files of some chunk sizes (0 = whole)."""
    found: dict[str, bytes | Content] = {}
    for data, chunk in files:
        pieces = [data[start : start + chunk] for start in range(0, len(data), chunk)] if chunk else [data]
        found.update((blob_path(sha256(one)), one) for one in pieces)
    return found


def web(url: str, **options: Any) -> HttpSource:
    return HttpSource(url, HttpOptions(**{"timeout": 10.0, **options}))


def blobs(
    folder: Path,
    sources: Sequence[RepositorySource],
    *,
    clock: FakeClock | None = None,
    apply: bool = False,
    **settings: Any,
) -> BlobFetcher:
    return BlobFetcher(
        AgentSettings(**{"reserve": 0, **settings}), StateLayout(folder), sources, clock or FakeClock(), apply=apply
    )


def store_manifest(folder: Path, *entries: FileEntry, release: int = 16) -> None:
    """Put a release's manifest where the agent keeps it."""
    listed = [
        {"path": one.path, "sha256": one.sha256, "bytes": one.size, "chunk_bytes": one.chunk_size, "chunks": one.chunks}
        for one in entries
    ]
    document = {
        "schema": 1,
        "bundle": "det",
        "family": "vision",
        "release": release,
        "release_counter": release,
        "models": {"det": {"files": listed}},
        "variants": [{"id": "any", "kind": "onnx", "priority": 1}],
    }
    path = StateLayout(folder).manifest("det", release)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_canonical_json(document))
