"""A device in a temporary directory: its boot partition, its root, and programs that record their calls."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from image.device.provision import programs
from image.device.provision.flow import Place, provision
from image.device.provision.mistakes import FILE
from image.device.provision.programs import Ended

MINIMAL = "schema = 1\n"


class Board:
    """A device. `boot` starts it once more."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.esp = self.root / "boot"
        self.state = self.root / "var/lib/edge-device"
        self.commands: list[Sequence[str]] = []
        self.names: list[str] = []
        self.mounted = self.lasting = True
        self.zones = base / "zones"
        for folder in (self.esp, self.root / "etc", self.state, self.zones / "Europe"):
            folder.mkdir(parents=True, exist_ok=True)
        for zone in ("Europe/Berlin", "Etc/UTC"):
            (self.zones / zone).parent.mkdir(exist_ok=True)
            (self.zones / zone).touch()
        (self.root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> Ended:
        """Record a command; make the key that `ssh-keygen` would make."""
        self.commands.append(command)
        if command[0] == "ssh-keygen":
            path = Path(command[-1])
            path.write_text("private")
            path.with_suffix(".pub").write_text("public")
        return Ended(0, "")

    @property
    def place(self) -> Place:
        return Place(self.root, self.esp, self.zones, lambda path: self.mounted, self.run, self.names.append)

    def boot(self) -> list[str]:
        """Start, and provision. Return the mistakes as text."""
        reports = self.place.reports
        reports.mkdir(parents=True, exist_ok=True)
        (reports / "data.json").write_text(json.dumps({"lasting": self.lasting, "reason": ""}))
        return [str(one) for one in provision(self.place)]

    def write(self, text: str | bytes, name: str = FILE) -> None:
        """Write a file to the boot partition."""
        (self.esp / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def configure(self, text: str) -> list[str]:
        """Write edge-serve.toml, and start the device."""
        self.write(MINIMAL + text)
        return self.boot()

    def text(self, path: str) -> str | None:
        """Return the content of a file of the root."""
        file = self.root / path
        return file.read_text() if file.exists() else None

    def faults(self) -> dict[str, Any]:
        """Return the faults that are reported: code -> text."""
        found = [json.loads(one.read_text()) for one in (self.root / "run/edge-device/faults").glob("*.json")]
        return {one["code"]: one["text"] for one in found}

    def files(self, below: str = "") -> dict[str, bytes]:
        """Return all files below a directory of the root."""
        top = self.root / below
        return {str(one.relative_to(top)): one.read_bytes() for one in sorted(top.rglob("*")) if one.is_file()}


def installed(command: Sequence[str], environ: Mapping[str, str]) -> Ended:
    """Run the programs of this checkout where the image has them in /opt."""
    modules = {programs.EDGE_SERVE: "edge_serve", programs.EDGE_OTA: "ota"}
    name, *rest = command
    return programs.run([sys.executable, "-m", modules[name], *rest] if name in modules else command, environ)
