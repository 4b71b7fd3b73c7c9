"""Checks of the machine that builds: root, programs, space, one build at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from image.errors import ImageError

#: program -> the package that has it
_PROGRAMS = {"apt-get": "apt", "dpkg": "dpkg", "dpkg-deb": "dpkg", "make": "make", "zstd": "zstd"}
#: for the tools, the cached trees, and one image
_GIGABYTES = 8


def work_folder() -> Path:
    """Return the folder for downloads and caches, which may be removed at any time between builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EDGE_IMAGE_CACHE") or Path(cache) / "edge-serve/image")


def check(folder: Path) -> None:
    """Check that an image can be built with `folder` as the work folder, which is made.

    Raises:
        ImageError: it cannot be, with all reasons.
    """
    problems = []
    if os.geteuid() != 0:
        problems.append("an image is built as root, whose files it contains: sudo make image")
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        problems.append(f"programs are missing: apt-get install {' '.join(missing)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < _GIGABYTES << 30:
            problems.append(
                f"{folder} has {free / (1 << 30):.1f} GiB free, an image needs {_GIGABYTES}:"
                " make room, or set EDGE_IMAGE_CACHE=<folder>"
            )
    except OSError as error:
        problems.append(f"{folder} cannot be made ({error.strerror}): set EDGE_IMAGE_CACHE=<folder>")
    if problems:
        raise ImageError("\n".join(problems))


def check_processor(machine: str, emulators: Path = Path("/proc/sys/fs/binfmt_misc")) -> None:
    """Check that programs for a processor, in the kernel's word, run here: natively, or emulated by qemu-user.

    Raises:
        ImageError: they do not.
    """
    emulator = emulators / f"qemu-{machine}"
    text = emulator.read_text() if emulator.exists() else ""
    # F: the kernel keeps the emulator open, so programs in another root are emulated too
    found = "enabled" in text and any("F" in line for line in text.splitlines() if line.startswith("flags:"))
    if platform.machine() != machine and not found:
        raise ImageError(
            f"programs for {machine} do not run on this machine: apt-get install qemu-user-static binfmt-support,"
            f" and in a container without them: mount -t binfmt_misc binfmt_misc {emulators} &&"
            f" update-binfmts --enable qemu-{machine}"
        )


@contextlib.contextmanager
def only_build(folder: Path) -> Iterator[None]:
    """Keep a second build out of the work folder.

    Raises:
        ImageError: another build has it.
    """
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ImageError(
                f"another build uses {folder}: wait for its end, or set EDGE_IMAGE_CACHE=<folder>"
            ) from None
        yield


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder that builds share. Waits while another build has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
