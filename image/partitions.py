"""The partition table of an image (GPT: UEFI specification, chapter 5): its system's version and processor."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from image.errors import ImageError

_SECTOR = 512
#: signature at the start of sector 1; offset 72: first sector, number, and size of the entries
_SIGNATURE = b"EFI PART"
_ENTRIES = struct.Struct("<QII")
#: types of root partitions (Discoverable Partitions Specification) -> processor
_ROOTS = {
    uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"): "x86-64",
    uuid.UUID("b921b045-1df0-41c3-af44-4c6f280d3fae"): "arm64",
}


@dataclass(frozen=True, slots=True)
class System:
    """The system in the first slot of an image."""

    version: int
    arch: str

    def __str__(self) -> str:
        return f"system {self.version} for {self.arch}"


def read_system(path: Path, head: bytes) -> System:
    """Return the system of an image from its first bytes.

    Raises:
        ImageError: it is no image of a device.
    """
    names = []
    for kind, name in _partitions(head):
        names.append(name)
        found = re.fullmatch(r"edge_(\d+)", name)
        if kind in _ROOTS and found:
            return System(int(found[1]), _ROOTS[kind])
    has = f"partitions {', '.join(map(repr, names))}" if names else "no partitions"
    raise ImageError(f"{path} is no image of edge-serve: found {has}, expected a root partition 'edge_<version>'")


def _partitions(head: bytes) -> Iterator[tuple[uuid.UUID, str]]:
    """Yield types and names of partitions."""
    if head[_SECTOR : _SECTOR + 8] != _SIGNATURE:
        return
    first, number, size = _ENTRIES.unpack_from(head, _SECTOR + 72)
    for index in range(min(number, 128)):
        entry = head[first * _SECTOR + index * size :][:128]
        if len(entry) == 128 and any(entry[:16]):
            yield uuid.UUID(bytes_le=entry[:16]), entry[56:].decode("utf-16-le", "replace").rstrip("\0")
