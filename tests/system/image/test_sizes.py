"""The sizes of the image: of what is flashed, of what an update writes, and of what each boot reads into memory."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

MB = 1_000_000
#: compressed image, root (erofs, which is compressed), and initrd
IMAGE, ROOT, INITRD = 350 * MB, 250 * MB, 40 * MB


def sections(kernel: bytes) -> dict[str, int]:
    """Return the sizes of a kernel image's sections (PE format: the file header, then one row of 40 bytes for each)."""
    header = struct.unpack_from("<I", kernel, 0x3C)[0]
    assert kernel[header : header + 4] == b"PE\0\0"
    count, optional = struct.unpack_from("<H", kernel, header + 6)[0], struct.unpack_from("<H", kernel, header + 20)[0]
    rows = [struct.unpack_from("<8sI", kernel, header + 24 + optional + 40 * row) for row in range(count)]
    return {name.rstrip(b"\0").decode(): size for name, size in rows}


@pytest.fixture(scope="module")
def update(image: Path) -> Path:
    """Return the description of the update files that were built with the image."""
    package = re.fullmatch(r"edge-serve_(.+)_([a-z]+)\.img\.zst", image.name)
    assert package, f"{image} is not the compressed image that `make image` writes"
    wanted = {"package": package[1], "profile": package[2], "arch": "x86-64"}
    found = {path: json.loads(path.read_text()) for path in image.parent.glob("edge_*.build.json")}
    built = [path for path, facts in found.items() if wanted.items() <= facts.items()]
    assert built, f"there is no edge_N.build.json of {image.name} beside it"
    return max(built, key=lambda path: path.stat().st_mtime)


def test_the_image_the_root_and_the_initrd_are_small(image: Path, update: Path) -> None:
    files = json.loads(update.read_text())["files"]
    kernel = (update.parent / files["efi"]["name"]).read_bytes()
    sizes = {
        "image, compressed": (image.stat().st_size, IMAGE),
        "root, compressed": (files["root"]["length"], ROOT),
        "initrd": (sections(kernel)[".initrd"], INITRD),
    }
    for name, (size, limit) in sizes.items():
        print(f"{name}: {size / MB:.1f} MB, at most {limit / MB:.0f}")
    print(f"kernel image: {len(kernel) / MB:.1f} MB")
    assert [name for name, (size, limit) in sizes.items() if size > limit] == []
