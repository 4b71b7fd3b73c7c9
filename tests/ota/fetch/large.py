"""A file of 1 GB that is made when it is read, and a process that fetches it.

`python -m tests.ota.fetch.large URL STATE ENTRY` prints the peak of its memory.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ota.clock import SystemClock
from ota.documents.manifest import FileEntry
from ota.documents.names import blob_path
from ota.fetch.blobs import BlobFetcher
from ota.fetch.http import HttpOptions, HttpSource
from ota.layout import StateLayout
from ota.settings import AgentSettings
from tests.ota.faulty_server import Content

BLOCK = 1_000_000
_LINES = 4099
_NOISE = {seed: random.Random(seed).randbytes(BLOCK + _LINES) for seed in (1, 2)}


@dataclass(frozen=True)
class Made:
    """Blocks of 1 MB, each of its own; those in `changed` are others than without it.

    Attributes:
        start: where it begins, so that it may also be a chunk of a larger one.
    """

    size: int
    start: int = 0
    changed: range = field(default_factory=lambda: range(0))

    def read(self, offset: int, count: int) -> bytes:
        at = self.start + offset
        number, inside = divmod(at, BLOCK)
        noise, first = _NOISE[2 if number in self.changed else 1], number % _LINES
        got = noise[first + inside : first + min(BLOCK, inside + count)]
        return got if len(got) == count else got + self.read(offset + len(got), count - len(got))

    def blocks(self) -> Iterator[bytes]:
        """Yield all of it."""
        for offset in range(0, self.size, BLOCK):
            yield self.read(offset, min(BLOCK, self.size - offset))

    def chunk(self, offset: int, size: int) -> Made:
        """Return a part."""
        return Made(min(size, self.size - offset), self.start + offset, self.changed)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()


def entry_of_made(made: Made, chunk: int) -> tuple[FileEntry, dict[str, Content]]:
    """Return the manifest's entry, and what the repository has."""
    chunks = [made.chunk(offset, chunk) for offset in range(0, made.size, chunk)] if chunk else []
    names = tuple(one.sha256() for one in chunks)
    entry = FileEntry("17/model.onnx", made.sha256(), made.size, chunk, names)
    stored: dict[str, Content] = {blob_path(name): one for name, one in zip(names, chunks, strict=True)}
    return entry, stored or {blob_path(entry.sha256): made}


def main(url: str, state: str, text: str) -> None:
    """Fetch, with the libraries of an agent in memory; print the peak of the memory."""
    import ota.agent.update
    import ota.trust.client  # noqa: F401 (memory of a real run)

    members = json.loads(text)
    entry = FileEntry(**{**members, "chunks": tuple(members["chunks"])})
    fetcher = BlobFetcher(
        AgentSettings(reserve=0), StateLayout(Path(state)), [HttpSource(url, HttpOptions())], SystemClock()
    )
    missing = fetcher.missing([entry])
    fetcher.fetch([entry])
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"peak_kb": peak, "missing": missing}))


def text_of(entry: FileEntry) -> str:
    """Return an entry as `main` reads it."""
    return json.dumps(asdict(entry))


if __name__ == "__main__":
    main(*sys.argv[1:])
