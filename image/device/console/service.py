"""The service of the console. It draws the terminals after each change, and writes the status file.

It is one process that sleeps until something changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from image.device.console import clock
from image.device.console.changes import Changes
from image.device.console.screen import screen
from image.device.console.terminals import Screens
from image.device.report import RUN, update_status

#: the screen, and the serial ports of PCs and of ARM machines
SCREENS = ("/dev/tty1", "/dev/ttyS0", "/dev/ttyAMA0")


def run(screens: Screens, changes: Changes, update: Callable[[], Mapping[str, Any]]) -> None:
    """Draw the screens after each change of the status. Does not return."""
    before: list[str] = []
    while True:
        lines = screen(update())
        if lines != before:
            screens.draw(lines)
            before = lines
        changes.wait()


def main() -> int:
    """Show the state of this device, for edge-console.service."""
    (RUN / "faults").mkdir(parents=True, exist_ok=True)
    changes = Changes(Path("/"))  # before the first reading, so that no change is missed
    run(Screens(SCREENS), changes, _update)
    return 0


def _update() -> Mapping[str, Any]:
    clock.look(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
    return update_status()
