"""What the tests of fetch/ share: a clock that does not wait, blobs with their entries, and a fetcher."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ota.documents.manifest import FileEntry
from ota.documents.names import blob_path
from ota.fetch.blobs import Blobs
from ota.fetch.chunks import ChunkIndex
from ota.fetch.http import HttpOptions, HttpSource
from ota.fetch.mirrors import Mirrors
from ota.fetch.pace import Pace, Progress
from ota.layout import Layout
from ota.settings import Settings
from ota.source import Source
from tests.ota.faulty_server import Content

#: seconds of silence that the tests wait for
TIMEOUT = 0.3


@dataclass
class FakeClock:
    """Time that passes by sleeping only."""

    time: float = 1_000_000.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


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
    return HttpSource(url, HttpOptions(**{"timeout": TIMEOUT, **options}))


def blobs(
    folder: Path,
    sources: Sequence[Source],
    *,
    clock: FakeClock | None = None,
    index: ChunkIndex | None = None,
    apply: bool = False,
    progress: Progress = lambda done, total, rate: None,
    jitter: Callable[[], float] = lambda: 0.5,
    **settings: Any,
) -> Blobs:
    clock = clock or FakeClock()
    pace = Pace(Settings(**settings), clock, apply=apply, progress=progress, jitter=jitter)
    return Blobs(Layout(folder), Mirrors(sources, clock), pace, index)
