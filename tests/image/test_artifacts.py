"""The files of an update: cut to their content, and what the kernel image says of itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from image import artifacts
from image.errors import ImageError
from tests.ota.system.images import uki

RELEASE = 'ID=debian\nIMAGE_ID="edge"\nIMAGE_VERSION="7"\nVARIANT_ID=base\nEDGE_STATE_SCHEMA=1\n'
COMMAND_LINE = f"quiet roothash={'ab' * 32} panic=5 systemd.import_credentials=no audit=0"
KERNEL = uki(RELEASE, COMMAND_LINE)


def superblock(blocks: int, algorithm: bytes = b"sha256") -> bytes:
    return struct.pack("<8sII16s32sIIQ", b"verity\0\0", 1, 1, b"u" * 16, algorithm, 4096, 4096, blocks).ljust(
        512, b"\0"
    )


@pytest.mark.parametrize(
    ("blocks", "hashes"),
    [(1, 0), (2, 1), (128, 1), (129, 3), (128 * 128, 129), (128 * 128 + 1, 129 + 1 + 2)],
)
def test_the_hash_partition_ends_after_its_tree(blocks: int, hashes: int) -> None:
    assert artifacts.used(superblock(blocks)) == artifacts.Extent(blocks * 4096, (1 + hashes) * 4096)


@pytest.mark.skipif(shutil.which("veritysetup") is None, reason="needs veritysetup")
def test_veritysetup_writes_as_many_bytes(tmp_path: Path) -> None:
    data, tree = tmp_path / "data", tmp_path / "tree"
    data.write_bytes(os.urandom(4096 * 300))
    tree.touch()
    subprocess.run(["veritysetup", "format", data, tree], check=True, capture_output=True)

    assert artifacts.used(tree.read_bytes()[:512]).verity == tree.stat().st_size


@pytest.mark.parametrize("block", [bytes(512), superblock(9, b"sha512")])
def test_other_bytes_than_a_hash_partition_are_refused(block: bytes) -> None:
    with pytest.raises(ImageError, match="expected the superblock"):
        artifacts.used(block)


@pytest.mark.parametrize("word", [b"systemd.import_credentials=on", b"systemd.import_everything=no"])
def test_a_kernel_that_takes_credentials_from_firmware_is_refused(word: bytes) -> None:
    artifacts.check_credentials(KERNEL)
    with pytest.raises(ImageError, match="found 0 times"):
        artifacts.check_credentials(KERNEL.replace(artifacts.REFUSED, word))


def test_a_kernel_with_two_root_hashes_is_refused() -> None:
    assert artifacts.root_hash(KERNEL) == "ab" * 32
    with pytest.raises(ImageError, match="found 2 root hashes"):
        artifacts.root_hash(KERNEL + b" roothash=" + b"cd" * 32)


def test_the_kernel_names_the_system_that_it_starts() -> None:
    assert artifacts.release(KERNEL) == {
        "ID": "debian", "IMAGE_ID": "edge", "IMAGE_VERSION": "7", "VARIANT_ID": "base",
        "EDGE_STATE_SCHEMA": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "kernel",
    [b"", b"MZ", KERNEL.replace(b".osrel", b".other"), KERNEL[:100], b"MZ" * 400],
    ids=["empty", "short", "other", "cut", "no-pe"],
)
def test_a_kernel_without_names_is_refused(kernel: bytes) -> None:
    with pytest.raises(ImageError, match=r"no section \.osrel"):
        artifacts.release(kernel)


def test_a_partition_is_cut_and_a_short_one_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "slot", tmp_path / "update"
    source.write_bytes(b"x" * 5000)
    artifacts.copy_start(source, target, 4096)

    assert target.read_bytes() == b"x" * 4096
    with pytest.raises(ImageError, match="ends 1 bytes early"):
        artifacts.copy_start(source, target, 5001)


def test_newest_image_is_the_one_built_last(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"has no \*\.img\.zst: make image"):
        artifacts.newest(tmp_path)
    for age, name in enumerate(("b.img.zst", "a.img.zst", "c.raw")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert artifacts.newest(tmp_path) == tmp_path / "a.img.zst"


def test_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    sums = artifacts.write_sums(tmp_path, [tmp_path / "b", tmp_path / "a"])

    assert sums.read_text().splitlines()[0] == f"{hashlib.sha256(b'a').hexdigest()}  a"
    subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=tmp_path, check=True)


def test_sums_of_an_earlier_build_stay_while_its_files_are_there(tmp_path: Path) -> None:
    for name in ("a", "b", "removed"):
        (tmp_path / name).write_text(name)
    artifacts.write_sums(tmp_path, [tmp_path / "a", tmp_path / "b", tmp_path / "removed"])
    (tmp_path / "removed").unlink()
    for name in ("b", "c"):
        (tmp_path / name).write_text(f"new {name}")
    sums = artifacts.write_sums(tmp_path, [tmp_path / "b", tmp_path / "c"])

    assert [line.partition("  ")[2] for line in sums.read_text().splitlines()] == ["a", "b", "c"]
    subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=tmp_path, check=True)
