"""Says how the device stopped the last time, unless it was shut down: by a kernel panic, its watchdog, or a power cut.

`stopped` marks a shutdown: edge-last-stop.service makes the file when it is stopped, and this program removes it at the
next start. `started` has what the next start needs: the system that ran, and the panics that were on record. Without it
the device was never started.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from image.device import facts, files, report

STOPPED = Path("var/lib/edge-device/stopped")
STARTED = Path("var/lib/edge-device/started")
#: systemd-pstore moves there what the kernel wrote to the firmware's memory when it panicked
PANICS = Path("var/lib/systemd/pstore")
#: what the driver says of the reset before this boot, if the hardware keeps it
BOOT_STATUS = Path("sys/class/watchdog/watchdog0/bootstatus")
_RESET_BY_WATCHDOG = 0x20  # WDIOF_CARDRESET of linux/watchdog.h
_MOST_BYTES = 64 * 1024
_MOST_PANICS = 256

_UNTIL = "This message ends with the next ordinary restart."


class Start(NamedTuple):
    """What is known at a start: the version of the system, and the names of the panics on record."""

    version: str
    panics: tuple[str, ...]


def main() -> int:
    """Report how the device stopped the last time. Return 0."""
    look(Path("/"))
    return 0


def look(root: Path, run: Path = report.RUN) -> None:
    """Report a stop that was no shutdown, and prepare the next start."""
    before, now = _read(root / STARTED), Start(facts.version(root), _panics(root))
    if before is not None and not (root / STOPPED).exists():
        text, help = explain(before, now, _boot_status(root))
        report.report("unclean-restart", text, help, run=run)
    with contextlib.suppress(OSError):  # edge-data.service reports a partition that cannot be written
        files.remove(root / STOPPED)
        if now != before:
            files.replace(root / STARTED, json.dumps(now._asdict()).encode())


def explain(before: Start, now: Start, boot_status: int) -> tuple[str, str]:
    """Return the text and the help for a stop that was no shutdown."""
    system = f"System {before.version}" if before.version else "The system"
    new = sorted(set(now.panics) - set(before.panics))
    if new:
        return (
            f"{system} ended with a kernel panic, and the device restarted.",
            f"The kernel's last messages are in /{PANICS}/{new[-1]}."
            f" If it comes again, install another system. {_UNTIL}",
        )
    if boot_status & _RESET_BY_WATCHDOG:
        return (
            f"{system} hung, and the watchdog of the hardware restarted the device.",
            f"If it comes again, install another system, or replace the device. {_UNTIL}",
        )
    return (
        f"{system} was not shut down: the power was cut, or the device was reset. It works again.",
        f"Nothing is to be done after a power cut. If there was none, the hardware or the kernel hung. {_UNTIL}",
    )


def _read(path: Path) -> Start | None:
    data = files.read_if_there(path, _MOST_BYTES)
    if data is None:
        return None
    try:
        found = json.loads(data)
        return Start(str(found["version"]), tuple(str(one) for one in found["panics"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Start("", ())


def _panics(root: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(root / PANICS))[-_MOST_PANICS:])
    except OSError:
        return ()


def _boot_status(root: Path) -> int:
    try:
        return int((root / BOOT_STATUS).read_text())
    except (OSError, ValueError):
        return 0
