"""A machine on paper: the ESP and the data partition are a directory, and systemd-boot is `start`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from image.device.slots import Slots, SlotStore


class Machine:
    """A device with boot entries that runs one of its versions."""

    def __init__(self, root: Path, entries: Iterable[str], running: int = 0, slots: Slots | None = None) -> None:
        self.root, self.boot = root, SlotStore(root)
        self.boot.entries_directory.mkdir(parents=True)
        (root / "etc").mkdir()
        self.boot.state.mkdir(parents=True)
        for name in entries:
            (self.boot.entries_directory / name).write_text(f"kernel of {name}")
        if slots is not None:
            self.boot.save(slots)
        if running:
            self.run(running)

    def run(self, version: int) -> None:
        """Make a version the running one, after a restart."""
        shutil.rmtree(self.root / "run/edge-device", ignore_errors=True)
        (self.root / "etc/os-release").write_text(f'ID=debian\nIMAGE_ID="edge"\nIMAGE_VERSION="{version}"\n')

    def place_data(self, lasting: bool, reason: str = "") -> None:
        """Say where /var is, as the initrd does."""
        self.boot.run.mkdir(parents=True, exist_ok=True)
        (self.boot.run / "data.json").write_text(json.dumps({"lasting": lasting, "reason": reason}))

    def names(self) -> list[str]:
        """Return the names of the entries."""
        return sorted(path.name for path in self.boot.entries_directory.iterdir())

    def start(self) -> int:
        """Do the work of systemd-boot: the highest version with tries left, else the highest; one try is used up."""
        entries = self.boot.entries()
        chosen = max(entries, key=lambda one: (one.usable, one.version))
        if chosen.left:
            done = int(chosen.name.partition("-")[2].partition(".")[0] or 0) + 1
            path = self.boot.entries_directory / chosen.name
            path.rename(path.with_name(f"edge_{chosen.version}+{chosen.left - 1}-{done}.efi"))
        self.run(chosen.version)
        return chosen.version


def status(models: Mapping[str, str], state: str = "ready") -> dict[str, Any]:
    """Return a status document of the server: model -> its condition."""
    rows = [{"name": name, "version": "1", "condition": word, "reason": ""} for name, word in models.items()]
    return {"schema": 2, "server": {"state": state, "ready": state == "ready"}, "models": rows}


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
