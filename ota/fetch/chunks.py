"""The pieces of a file, which are fetched, verified, and repaired one by one, and where the device already has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.documents.manifest import MOST_BYTES, FileEntry, Manifest, read_manifest
from ota.errors import OtaError
from ota.layout import StateLayout


@dataclass(frozen=True, slots=True)
class Piece:
    """A blob of the repository: a part of a file, or the whole file."""

    sha256: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.size


def pieces_of(entry: FileEntry) -> list[Piece]:
    """Return the blobs that make up a file, in order."""
    if not entry.chunks:
        return [Piece(entry.sha256, 0, entry.size)]
    return [
        Piece(sha256, offset, min(entry.chunk_size, entry.size - offset))
        for offset, sha256 in zip(range(0, entry.size, entry.chunk_size), entry.chunks, strict=True)
    ]


class ChunkIndex:
    """The chunks in files of the store. They are verified when they are used.

    Args:
        places: the SHA-256 of a chunk -> the file with it, its offset, and its length.
    """

    def __init__(self, places: Mapping[str, tuple[Path, int, int]] | None = None) -> None:
        self._places = places or {}

    @classmethod
    def of(cls, manifests: Iterable[Manifest], blob: Callable[[str], Path]) -> ChunkIndex:
        """Return the chunks of the files that releases have and that are on disk."""
        places: dict[str, tuple[Path, int, int]] = {}
        for manifest in manifests:
            for _, entry in manifest.every_file():
                path = blob(entry.sha256)
                if entry.chunks and path.is_file():
                    places.update((one.sha256, (path, one.offset, one.size)) for one in pieces_of(entry))
        return cls(places)

    @classmethod
    def stored(cls, layout: StateLayout) -> ChunkIndex:
        """Return the chunks of the releases on this device. A manifest that cannot be read is skipped."""
        found = []
        for path in sorted(layout.manifests.glob("*.json")):
            bundle, _, release = path.stem.rpartition(".")
            try:
                if (data := files.read(path, MOST_BYTES)) is not None:
                    found.append(read_manifest(data, bundle, int(release)))
            except (OtaError, ValueError):
                continue
        return cls.of(found, layout.blob)

    def find(self, piece: Piece) -> tuple[Path, int] | None:
        """Return the file and the offset of a chunk."""
        path, offset, size = self._places.get(piece.sha256, (None, 0, -1))
        return (path, offset) if path is not None and size == piece.size else None
