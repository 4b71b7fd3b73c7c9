"""Small images for tests: a root, the hash tree of dm-verity over it, and a PE file with the sections of a UKI."""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

BLOCK = 4096
SALT = bytes(range(32))
MACHINES = {"x86_64": 0x8664, "aarch64": 0xAA64, "riscv64": 0x5064}


def write_image(
    folder: Path,
    version: int,
    *,
    profile: str = "base",
    arch: str = "x86_64",
    blocks: int = 300,
    product: str = "edge",
    schema: int = 1,
    words: str = "systemd.import_credentials=no",
) -> list[Path]:
    """Write the three files of an image; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    root = b"".join(f"root {version} {profile} {number}".encode().ljust(BLOCK, b".") for number in range(blocks))
    tree, top = hash_tree(root)
    paths = [folder / f"{product}_{version}{ending}" for ending in (".root", ".verity", ".efi")]
    paths[0].write_bytes(root)
    paths[1].write_bytes(superblock(blocks) + tree)
    release = f'ID=debian\nIMAGE_ID="{product}"\nIMAGE_VERSION="{version}"\n'
    release += f"VARIANT_ID={profile}\n" if profile else ""
    release += f"EDGE_STATE_SCHEMA={schema}\n" if schema else ""
    paths[2].write_bytes(uki(release, f"roothash={top} console=ttyS0 {words}", MACHINES[arch]))
    return paths


def main() -> None:
    """Write an image for an example: `python -m tests.ota.system.images dist 2`."""
    folder, version = sys.argv[1:]
    write_image(Path(folder), int(version))


def hash_tree(root: bytes) -> tuple[bytes, str]:
    """Return the levels of the tree, the top first, and the root hash."""
    level, found = root, b""
    while True:
        hashes = [hashlib.sha256(SALT + level[at : at + BLOCK]).digest() for at in range(0, len(level), BLOCK)]
        if len(hashes) == 1:
            return found, hashes[0].hex()
        level = b"".join(b"".join(hashes[at : at + 128]).ljust(BLOCK, b"\0") for at in range(0, len(hashes), 128))
        found = level + found


def superblock(blocks: int) -> bytes:
    """Return the first block of a verity file."""
    head = struct.pack("<8sII16s32sIIQH6x", b"verity\0\0", 1, 1, b"u" * 16, b"sha256", BLOCK, BLOCK, blocks, 32)
    return (head + SALT).ljust(BLOCK, b"\0")


def uki(release: str, command_line: str, machine: int = 0x8664) -> bytes:
    """Return a PE file with the sections of a UKI."""
    sections = {
        b".osrel": release.encode(), b".cmdline": command_line.encode() + b"\0",
        b".linux": b"kernel " * 100, b".initrd": b"initrd " * 100,
    }  # fmt: skip
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    coff = struct.pack("<4sHH12xHH", b"PE\0\0", machine, len(sections), 0, 0)
    table, data, offset = b"", b"", len(head) + len(coff) + 40 * len(sections)
    for name, text in sections.items():
        table += struct.pack("<8sIIII16x", name, len(text), 0, len(text), offset + len(data))
        data += text
    return head + coff + table + data


if __name__ == "__main__":
    main()
