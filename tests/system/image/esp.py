"""The boot partition (ESP) of a disk that no machine uses: files of a laptop on it, by mtools."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a disk: its name (GPT label), and where it is, in bytes."""

    label: str
    kind: uuid.UUID
    start: int
    size: int


ESP = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")


def partitions(disk: Path) -> Iterator[Partition]:
    """Yield the partitions of a raw disk, from its first table (GPT, UEFI 2.10, section 5.3).

    Raises:
        AssertionError: there is no such table.
    """
    with disk.open("rb") as file:
        file.seek(_SECTOR)
        header = file.read(92)
        assert header[:8] == b"EFI PART", f"{disk} has no partition table"
        table, count, size = struct.unpack_from("<QII", header, 72)
        file.seek(table * _SECTOR)
        entries = [file.read(size) for _ in range(count)]
    for entry in entries:
        kind = uuid.UUID(bytes_le=entry[:16])
        first, last = struct.unpack_from("<QQ", entry, 32)
        if kind.int:
            label = entry[56:128].decode("utf-16-le").rstrip("\0")
            yield Partition(label, kind, first * _SECTOR, (last - first + 1) * _SECTOR)


def before_superblock(disk: Path, label: str) -> int:
    """Return the offset of a byte in the first block of a root that erofs does not use: verity alone notices a change.

    Args:
        label: of the partition, or its beginning.
    """
    return next(one for one in partitions(disk) if one.label.startswith(label)).start + 512


def flip(disk: Path, offset: int) -> None:
    """Change one bit of a disk."""
    with disk.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


class Esp:
    """The boot partition of a raw disk."""

    def __init__(self, disk: Path) -> None:
        found = next(one for one in partitions(disk) if one.kind == ESP)
        self._drive = ["-i", f"{disk}@@{found.start}"]

    def write(self, name: str, content: bytes) -> None:
        """Write a file, by its path with slashes."""
        self._do("mcopy", "-o", "-", f"::/{name}", given=content)

    def read(self, name: str) -> bytes:
        """Return a file.

        Raises:
            subprocess.CalledProcessError: there is none.
        """
        return self._do("mtype", f"::/{name}")

    def rename(self, old: str, new: str) -> None:
        """Rename a file within its folder."""
        self._do("mren", f"::/{old}", new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._do("mdel", f"::/{name}")

    def fill(self, name: str) -> None:
        """Write a file of zeros that leaves no free space."""
        listed = self._do("mdir", "::/").decode().splitlines()
        free = next(line for line in listed if line.endswith(" bytes free"))
        with tempfile.NamedTemporaryFile() as zeros:
            zeros.truncate(int("".join(word for word in free.split() if word.isdigit())))
            self._do("mcopy", "-o", zeros.name, f"::/{name}")

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder; those of folders end with a slash."""
        listed = self._do("mdir", "-b", f"::/{folder}").decode().splitlines()
        return [line.removeprefix("::/").removeprefix(folder).lstrip("/") for line in listed]

    def _do(self, program: str, *words: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [program, *self._drive, *words], input=given, capture_output=True, check=False, timeout=120
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, program, done.stdout, done.stderr)
        return done.stdout


def why_not() -> str:
    """Return why this host cannot change a boot partition; "" = it can."""
    return "" if shutil.which("mcopy") else "mtools is not installed: apt-get install mtools"
