"""Moments of a running machine's disk: what a power cut at that moment would leave on it.

QEMU freezes the file of the disk and writes on to a new one (a snapshot). So one run gives many moments, and each costs
one boot to test. A frozen file has every write that QEMU had reported as done, and no other one.
"""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.system.disk import Disk


class Moments:
    """Freezes the disk of a machine.

    Attributes:
        files: the frozen files, the oldest first
    """

    def __init__(self, disk: Disk) -> None:
        """Prepare a machine that has not started."""
        self._disk = disk
        self._monitor = disk.folder / "monitor"
        self._now = disk.disk
        self.files: list[Path] = []
        disk.change(more=(*disk.hardware.more, "-qmp", f"unix:{self._monitor},server=on,wait=off"))

    def freeze(self) -> None:
        """Add a moment: now."""
        file = self._disk.folder / f"moment-{len(self.files) + 1}.qcow2"
        arguments = {"device": "disk", "snapshot-file": str(file), "format": "qcow2"}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self._monitor))
            with connection.makefile("rw") as lines:
                _ask(lines, "qmp_capabilities", {})
                _ask(lines, "blockdev-snapshot-sync", arguments)
        self.files.append(self._now)
        self._now = file

    def cut_at(self, moment: Path) -> None:
        """Cut the power of the machine, and give it the disk of a moment."""
        self._disk.cut()
        disk = self._disk.folder / "cut.qcow2"
        kind = "qcow2" if moment.suffix == ".qcow2" else "raw"
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", kind, "-b", str(moment), str(disk)]
        subprocess.run(command, check=True)
        self._disk.disk = disk


def _ask(lines: Any, command: str, arguments: dict[str, str]) -> None:
    """Send a command to QEMU's monitor and wait for its end (QMP). Other lines are events, and the greeting."""
    lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    lines.flush()
    while True:
        answer = json.loads(lines.readline())
        assert "error" not in answer, answer
        if "return" in answer:
            return
