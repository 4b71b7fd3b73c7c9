"""Looks at the data partition while the system runs: is there space, and can it be written?

`edge-state` in the initrd does the same at boot, with the same limits.
"""

from __future__ import annotations

import os
from pathlib import Path

from image.device import report

VAR = Path("/var")
#: below this the server cannot work; as in initrd/edge-state
LEAST_BYTES = 64 * 1024 * 1024
LEAST_FILES = 1000


def main() -> int:
    """Report what is wrong with the data partition. Return 0."""
    look(os.statvfs(VAR))
    return 0


def look(found: os.statvfs_result, run: Path = report.RUN) -> None:
    """Report or clear the faults of a file system."""
    free = found.f_bavail * found.f_frsize
    if free < LEAST_BYTES or found.f_favail < LEAST_FILES:
        report.report(
            "data-full",
            f"The data partition is full: {free // 1_000_000} MB and {found.f_favail} files are left.",
            "Remove models, or files in /var: updates, logs, and new settings need space.",
            run=run,
        )
    else:
        report.clear("data-full", run=run)
    if found.f_flag & os.ST_RDONLY:
        report.report(
            "data-read-only",
            "The data partition cannot be written: its file system or its disk has an error.",
            "Restart the device, which repairs the partition. If this comes again, replace the disk.",
            run=run,
        )
    else:
        report.clear("data-read-only", run=run)
