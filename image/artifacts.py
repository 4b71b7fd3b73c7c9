"""The files that a build leaves in dist/: cut to their content, compressed, with their sums."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from image.errors import ImageError

#: of the kernel's command line: firmware may give the system no files and units
REFUSED = b"systemd.import_credentials=no"

_ROOT_HASH = re.compile(rb"roothash=([0-9a-f]{64})")
#: a line of os-release
_SETTING = re.compile(r'^([A-Z_]+)="?([^"\n]*)"?$', re.MULTILINE)
#: dm-verity's superblock: signature, version, hash type, UUID, algorithm, sizes of data and hash blocks, data blocks
_SUPERBLOCK = struct.Struct("<8sII16s32sIIQ")
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes from the start of a root partition and of its hash partition that are in use."""

    root: int
    verity: int


def used(superblock: bytes) -> Extent:
    """Return the bytes in use, from the first 512 bytes of a hash partition.

    Raises:
        ImageError: it is no superblock of dm-verity with SHA-256.
    """
    signature, _, _, _, algorithm, data_block, hash_block, blocks = _SUPERBLOCK.unpack_from(superblock)
    if signature != b"verity\0\0" or algorithm.rstrip(b"\0") != b"sha256":
        raise ImageError(
            f"found {signature!r} and {algorithm!r}, expected the superblock of a hash partition with SHA-256"
        )
    total, level = 1, blocks
    while level > 1:
        level = -(-level // (hash_block // _DIGEST))
        total += level
    return Extent(blocks * data_block, total * hash_block)


def root_hash(kernel: bytes) -> str:
    """Return the hash of the root that a unified kernel image starts.

    Raises:
        ImageError: its command line has none.
    """
    found = set(_ROOT_HASH.findall(kernel))
    if len(found) != 1:
        raise ImageError(f"found {len(found)} root hashes in the kernel image, expected one: build the image again")
    return str(found.pop(), "ascii")


def release(kernel: bytes) -> dict[str, str]:
    """Return os-release of the root that a unified kernel image starts: its section `.osrel`.

    Raises:
        ImageError: it is no such image, or has no such section.
    """
    try:
        (start,) = struct.unpack_from("<I", kernel, 60)
        signature, sections, optional = struct.unpack_from("<4s2xH12xH", kernel, start)
        found = [struct.unpack_from("<8sI4xII", kernel, start + 24 + optional + 40 * one) for one in range(sections)]
    except struct.error:
        signature, found = b"", []
    for name, length, size, offset in found if signature == b"PE\0\0" else ():
        if name.rstrip(b"\0") == b".osrel":
            text = kernel[offset : offset + min(length, size)].decode(errors="replace")
            return dict(_SETTING.findall(text))
    raise ImageError("the kernel image has no section .osrel: build the image again")


def check_credentials(kernel: bytes) -> None:
    """Refuse a unified kernel image that takes units and files from firmware.

    Raises:
        ImageError: its command line lacks the setting.
    """
    if kernel.count(REFUSED) != 1:
        raise ImageError(
            f"found {kernel.count(REFUSED)} times '{REFUSED.decode()}' in the kernel image, expected once:"
            " see KernelCommandLine= of mkosi.conf"
        )


def copy_start(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes of a file."""
    with source.open("rb") as reader, target.open("wb") as writer:
        left = size
        while left:
            block = reader.read(min(left, 1 << 20))
            if not block:
                raise ImageError(f"{source} ends {left} bytes early: build the image again")
            writer.write(block)
            left -= len(block)


def newest(folder: Path) -> Path:
    """Return the image in a folder that was built last.

    Raises:
        ImageError: there is none.
    """
    images = sorted(folder.glob("*.img.zst"), key=lambda path: path.stat().st_mtime)
    if not images:
        raise ImageError(f"{folder} has no *.img.zst: make image")
    return images[-1]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_sums(folder: Path, paths: list[Path]) -> Path:
    """Write the lines of `sha256sum` for files to SHA256SUMS of a folder. Return its path.

    The lines of other files that are still in the folder stay: builds of several profiles share it.

    Args:
        paths: the files. They may still be in another folder, and are listed by name.
    """
    sums = folder / "SHA256SUMS"
    lines = {path.name: f"{sha256(path)}  {path.name}" for path in paths}
    for line in sums.read_text().splitlines() if sums.exists() else ():
        name = line.partition("  ")[2]
        if name not in lines and (folder / name).is_file():
            lines[name] = line
    fresh = sums.with_name(".SHA256SUMS.new")
    fresh.write_text("".join(f"{lines[name]}\n" for name in sorted(lines)))
    return fresh.replace(sums)
