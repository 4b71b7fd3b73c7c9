"""The processes that a test started."""

from __future__ import annotations

import psutil


def started_here() -> list[psutil.Process]:
    """Our own children; not the resource tracker, which Python's shared memory leaves running once it was used."""
    return [child for child in psutil.Process().children() if not _tracks(child)]


def _tracks(child: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in argument for argument in child.cmdline())
    except psutil.Error:
        return False
