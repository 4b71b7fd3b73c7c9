"""The file that pauses updates."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ota import files
from ota.errors import OtaError
from ota.layout import StateLayout
from ota.strict_json import to_canonical_json


@dataclass(frozen=True, slots=True)
class Pause:
    """The time and the reason of a pause."""

    since: float
    why: str = ""


def read(layout: StateLayout) -> Pause | None:
    """Return the pause; None = none. A file that cannot be read counts as a pause."""
    try:
        data = files.read(layout.pause, 64 * 1024)
        if data is None:
            return None
        found = json.loads(data)
        return Pause(float(found["since"]), str(found["why"])[:1000])
    except (OtaError, ValueError, KeyError, TypeError, RecursionError):
        return Pause(0.0, f"{layout.pause} exists, but cannot be read")


def write(layout: StateLayout, found: Pause) -> None:
    """Pause updates durably."""
    files.write_durably(layout.pause, to_canonical_json({"since": found.since, "why": found.why}), 0o640)


def remove(layout: StateLayout) -> bool:
    """Resume updates. Return whether they were paused."""
    with files.wrap_errors(layout.pause):
        if not layout.pause.exists():
            return False
        files.unlink(layout.pause)
        files.sync_directory(layout.pause.parent)
        return True
