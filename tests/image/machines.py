"""Machines that tests make up: the files of /sys and /proc that describe disks, and images with a partition table."""

from __future__ import annotations

import shutil
import struct
import subprocess
import uuid
from pathlib import Path

X86_64, ARM64, ESP = (
    uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
    uuid.UUID("b921b045-1df0-41c3-af44-4c6f280d3fae"),
    uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),
)


class Machine:
    """A folder that stands in for / of a machine with disks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._number = 0
        for folder in ("sys/class/block", "dev", "proc/self"):
            (root / folder).mkdir(parents=True)
        (root / "proc/self/mountinfo").touch()

    def disk(self, name: str, /, gigabytes: float = 32, bus: str = "pci0000:00/ata1", **device: str) -> Path:
        """Add a disk. Return its folder in /sys."""
        folder = self.root / "sys/devices" / bus / "block" / name
        self._block(folder, int(gigabytes * 1e9))
        (folder / "device").mkdir()
        for fact, text in device.items():
            (folder / "device" / fact).write_text(f"{text}    \n")
        return folder

    def partition(self, disk: Path, name: str, gigabytes: float = 1) -> None:
        self._block(disk / name, int(gigabytes * 1e9))
        (disk / name / "partition").write_text("1\n")

    def mapped(self, name: str, *parts: str) -> None:
        """Add a device that the device mapper makes of partitions."""
        folder = self.root / "sys/devices/virtual/block" / name
        self._block(folder, 10**9)
        (folder / "slaves").mkdir()
        for part in parts:
            (folder / "slaves" / part).mkdir()
            (self.root / "sys/class/block" / part / "holders" / name).mkdir(parents=True)

    def mount(self, name: str, place: str, number: str = "") -> None:
        number = number or (self.root / "sys/class/block" / name / "dev").read_text().strip()
        with (self.root / "proc/self/mountinfo").open("a") as file:
            file.write(f"36 35 {number} / {place} rw,noatime shared:1 - ext4 /dev/{name} rw\n")

    def _block(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True)
        self._number += 1
        (folder / "dev").write_text(f"8:{self._number}\n")
        (folder / "size").write_text(f"{size // 512}\n")
        (folder / "ro").write_text("0\n")
        (self.root / "sys/class/block" / folder.name).symlink_to(folder)
        (self.root / "dev" / folder.name).touch()


def table(*parts: tuple[uuid.UUID, str]) -> bytes:
    """Return the start of a disk with a partition table."""
    header = bytearray(512)
    header[:8] = b"EFI PART"
    struct.pack_into("<QII", header, 72, 2, 128, 128)
    entries = b"".join(
        kind.bytes_le + bytes(16) + struct.pack("<QQQ", 0, 0, 0) + name.encode("utf-16-le").ljust(72, b"\0")
        for kind, name in parts
    )
    return bytes(512) + bytes(header) + entries.ljust(128 * 128, b"\0")


def image(folder: Path, content: bytes, name: str = "edge-serve_1_base.img.zst") -> Path:
    """Write a compressed image."""
    path = folder / name
    program = shutil.which("zstd")
    assert program is not None, "apt-get install zstd"
    subprocess.run([program, "--quiet", "-o", str(path)], input=content, check=True)
    return path
