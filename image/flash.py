"""Writes an image to a disk: `make flash DEVICE=/dev/sdb`.

The image is checked before the disk is touched, and the disk is read back after it was written.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image import artifacts
from image.disks import Disk, check, contents, find_disk, gigabytes
from image.errors import ImageError
from image.partitions import System, read_system

#: the least disk: boot partition, two slots with their hashes, and 2 GiB of data
LEAST = 12_000_000_000

_BLOCK = 4 << 20
_ZEROS = bytes(_BLOCK)
#: ioctls of linux/fs.h: write zeros without sending them, read the partition table again
_BLKZEROOUT, _BLKRRPART = 0x127F, 0x125F
#: the copy of an old partition table at the end of the disk
_OLD_TABLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    """A compressed image that was read once from start to end.

    Attributes:
        size: in bytes, decompressed
        sha256: of the decompressed bytes
        system: the system in its first slot
    """

    path: Path
    size: int
    sha256: str
    system: System


def read_image(path: Path) -> Image:
    """Read an image from start to end.

    Raises:
        ImageError: it is cut off, damaged, or no image of a device.
    """
    _compare_sum(path)
    digest, size, head = hashlib.sha256(), 0, b""
    for block in _blocks(path):
        head = head or block
        digest.update(block)
        size += len(block)
    return Image(path, size, digest.hexdigest(), read_system(path, head))


def _compare_sum(path: Path) -> None:
    """Compare an image with the sums beside it, which `make image` wrote. Say so if they do not have it."""
    try:
        lines = (path.parent / "SHA256SUMS").read_text().splitlines()
    except OSError:
        return
    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}.get(path.name)
    if expected is None:
        print(f"SHA256SUMS beside {path} has no line for it: its sum is not compared", flush=True)
        return
    if (found := artifacts.sha256(path)) != expected:
        raise ImageError(
            f"{path} has the SHA-256 {found[:16]}..., SHA256SUMS beside it has {expected[:16]}...: copy the image again"
        )


def _blocks(path: Path) -> Iterator[bytes]:
    """Decompress an image in blocks."""
    command = ["zstd", "--decompress", "--stdout", "--quiet", "--long=27", str(path)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise ImageError("the program zstd is missing: apt-get install zstd") from None
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while block := process.stdout.read(_BLOCK):
                yield block
        except GeneratorExit:
            process.terminate()
            raise
        reason = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise ImageError(f"{path} is damaged or cut off: copy or build it again ({reason})")


def write(image: Image, device: int, name: str, progress: Callable[[str, int], None]) -> None:
    """Write an image to a device that is open for writing, and read it back.

    Raises:
        ImageError: the disk failed, is full, or has other bytes than the image.
    """
    done = 0
    step = "writing"
    try:
        for block in _blocks(image.path):
            _write_block(device, block, done)
            done += len(block)
            progress(step, done)
        os.fsync(device)
        step, done = "reading back", 0
        os.posix_fadvise(device, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        while done < image.size:
            block = os.pread(device, min(_BLOCK, image.size - done), done)
            if not block:
                raise OSError(errno.ENXIO, "the disk ends here")
            digest.update(block)
            done += len(block)
            progress(step, done)
    except OSError as error:
        place = f"after {gigabytes(done)} of {gigabytes(image.size)}"
        raise ImageError(
            f"{name} failed while {step}, {place}: {error.strerror}. It holds no complete system:"
            " flash it again, or take another disk"
        ) from None
    if digest.hexdigest() != image.sha256:
        raise ImageError(f"{name} returned other bytes than were written: it is damaged or forged; take another disk")


def _write_block(device: int, block: bytes, place: int) -> None:
    """Write a block. Zeros are left to the disk, which can often write them without receiving them."""
    if block == _ZEROS[: len(block)]:
        with contextlib.suppress(OSError):
            fcntl.ioctl(device, _BLKZEROOUT, struct.pack("QQ", place, len(block)))
            return
    view = memoryview(block)
    while view:
        written = os.pwrite(device, view, place)
        view, place = view[written:], place + written


@contextlib.contextmanager
def opened(disk: Disk) -> Iterator[int]:
    """Open a disk. While it is open, no other program can mount it.

    Raises:
        ImageError: a program uses it, or this user may not.
    """
    try:
        device = os.open(disk.path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except PermissionError:
        raise ImageError(f"{disk.path} may only be written by root: sudo make flash DEVICE={disk.path}") from None
    except OSError as error:
        busy = "another program uses it (lsof, or a mount in a container)" if error.errno == errno.EBUSY else ""
        raise ImageError(f"{disk.path} cannot be opened: {busy or error.strerror}") from None
    try:
        yield device
    finally:
        with contextlib.suppress(OSError):
            fcntl.ioctl(device, _BLKRRPART)
        os.close(device)


def probe(paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the facts that blkid reads from devices; none where it is not installed."""
    found = {}
    program = shutil.which("blkid", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    for path in paths if program else ():
        done = subprocess.run([str(program), "--probe", "--output", "export", path], capture_output=True, text=True)
        lines = (line.partition("=") for line in done.stdout.splitlines())
        found[path] = {key: re.sub(r"\\(.)", r"\1", value) for key, _, value in lines}
    return found


def flash(path: Path | None, device: str, answer: str | None) -> str:
    """Write an image, by default the newest one, to a device that the user or `answer` names. Return the result.

    Raises:
        ImageError: the disk or the image is refused, or writing failed.
    """
    disk = find_disk(device)
    check(disk, LEAST)
    path = path or artifacts.newest(Path("dist"))
    if not path.is_file():
        raise ImageError(f"{path} is no file: make image, or choose one with --image")
    print(f"reading {path}", flush=True)
    image = read_image(path)
    check(disk, image.size)
    print(f"image   {path.name}: {image.system}, {gigabytes(image.size)}")
    print(f"disk    {disk}")
    print(*(f"        {line}" for line in contents(disk, probe)), sep="\n", flush=True)
    with opened(disk) as open_device:
        confirm(disk, answer)
        try:
            write(image, open_device, disk.path, Meter(image.size))
        except KeyboardInterrupt:
            raise ImageError(f"stopped; {disk.path} holds no complete system: flash it again") from None
        with contextlib.suppress(OSError):
            _write_block(open_device, _ZEROS[:_OLD_TABLE], disk.size - _OLD_TABLE)
            os.fsync(open_device)
    return f"{disk.path} has the image and was read back; edit edge-serve.toml on its first partition (docs/image.md)"


def confirm(disk: Disk, answer: str | None, ask: Callable[[str], str] = input) -> None:
    """Ask for the disk's name, unless `answer` has it.

    Raises:
        ImageError: the name is another one.
    """
    if answer is None:
        try:
            answer = ask(f"All of this disk is lost. Type its name ({disk.name}) to write the image: ")
        except EOFError:
            raise ImageError(f"no name was typed, so nothing was written; in scripts: --yes {disk.name}") from None
    if answer.strip().removeprefix("/dev/") != disk.name:
        raise ImageError(f"found the name {answer.strip()!r}, expected {disk.name!r}: nothing was written")


class Meter:
    """Prints progress: on a terminal in one line, elsewhere a line every ten seconds."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._terminal = sys.stdout.isatty()
        self._next = self._start = time.monotonic()
        self._step = ""

    def __call__(self, step: str, done: int) -> None:
        """Print how much of a step is done."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._start, self._next = step, now, now
        if now < self._next and done < self._size:
            return
        self._next = now + (0.5 if self._terminal else 10)
        rate = done / 1e6 / max(now - self._start, 0.001)
        line = f"{step}: {done / self._size:4.0%} of {gigabytes(self._size)}, {rate:.0f} MB/s"
        print(line, end="\r" if self._terminal and done < self._size else "\n", flush=True)


def main(argv: Sequence[str]) -> int:
    """Run `python -m image flash`. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m image flash", description="write an image to a disk")
    parser.add_argument("device", help="the disk, such as /dev/sdb or /dev/disk/by-id/...")
    parser.add_argument("--image", type=Path, help="default: the newest dist/*.img.zst")
    parser.add_argument("--yes", metavar="NAME", help="the disk's name, such as sdb, in place of typing it")
    options = parser.parse_args(argv)
    try:
        print(flash(options.image, options.device, options.yes))
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nimage: stopped, nothing was written", file=sys.stderr)
        return 130
    return 0
