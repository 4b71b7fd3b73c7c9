"""Reads the whole root through dm-verity, so that a damaged slot is found before its blocks are needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from image.device import report
from image.device.health import fall_back
from image.device.restart import restart
from image.device.slots import SlotStore

DEVICE = Path("/dev/mapper/root")
_BLOCK = 1024 * 1024


def main() -> int:
    """Read the root. Return 0 if it is whole, or if no other system could do better."""
    return scrub(SlotStore(), DEVICE, restart)


def scrub(boot: SlotStore, device: Path, restart: Callable[[], None]) -> int:
    """Read a device to its end; a read error condemns the running system.

    Returns:
        The exit status.
    """
    offset = first_error(device)
    if offset is None:
        report.clear("system-damaged")
        print(f"the root is whole: {device}")
        return 0
    running = boot.running()
    text = f"its root is damaged at byte {offset}: the disk returned other data than was written"
    fall_back(boot, running, "disk", text, restart, code="system-damaged")
    return 0


def first_error(device: Path) -> int | None:
    """Return the offset of the first block that cannot be read; None if there is none.

    Raises:
        OSError: the device cannot be opened.
    """
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    offset = 0
    try:
        while block := os.read(descriptor, _BLOCK):
            # the page cache is for the programs that run
            os.posix_fadvise(descriptor, offset, len(block), os.POSIX_FADV_DONTNEED)
            offset += len(block)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return offset
    finally:
        os.close(descriptor)
    return None
