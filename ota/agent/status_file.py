"""The status file, from which edge-serve shows updates in `status`, `/ui`, and metrics.

It is replaced by a rename without fsync: after a power cut the next run writes it again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from ota import files
from ota.errors import OtaError
from ota.layout import StateLayout
from ota.store import bad
from ota.store.journal import Journal
from ota.strict_json import find_object, to_canonical_json

SCHEMA = 1
_MOST_BYTES = 1024 * 1024
_MOST_MESSAGE = 1000


class StatusFile:
    """The status document, and changes to it. A failed write is ignored, because it must not fail an update."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self.document = read(layout)

    def write(self, now: float, **members: object) -> None:
        """Set members of the document, and write it."""
        self.document.update(
            members, schema=SCHEMA, agent=version(), time=now, disk_free_bytes=free_bytes(self._layout)
        )
        path = self._layout.status
        fresh = path.with_name(f".{path.name}.new")
        try:
            with files.create(fresh, 0o640) as file:
                files.write(file, fresh, to_canonical_json(self.document))
            files.rename(fresh, path)
        except OSError:
            return

    def bundle(self, now: float, entry: Journal, **members: object) -> None:
        """Write the state of a bundle. `reason`: why the last try failed, or why an update waits."""
        models = self.document.setdefault("models", {})
        following = entry.next
        known = models.get(entry.bundle)
        if "progress" not in members or not isinstance(known, dict):  # progress is written often, and changes no list
            found = bad.load(self._layout)
            known = {"failed": sorted(found.releases(entry.bundle))}
            self.set_total("bad_releases", len({(one.bundle, one.release) for one in found.entries if one.permanent}))
        models[entry.bundle] = {
            "release": entry.serving(),
            "previous": entry.previous,
            "next": following.release if following else 0,
            "stage": following.stage.value if following else "",
            "reason": following.reason if following else "",
            "models": list(entry.models.get(entry.serving(), ())),
            "failed": known.get("failed", []),
            "progress": {"done_bytes": 0, "total_bytes": 0},
            **members,
        }
        self.write(now)

    def failed(self, now: float, step: str, error: OtaError) -> None:
        """Count a failure, and write its error."""
        self.count(f"{step}/{error.reason}")
        self.write(now, error={"reason": error.reason, "message": error.message[:_MOST_MESSAGE]})

    def count(self, what: str, more: int = 1) -> None:
        """Add to the counter of a failure (`step/reason`) or of a total."""
        counters = self.document.setdefault("counters", {})
        place = counters.setdefault("failures", {}) if "/" in what else counters
        place[what] = place.get(what, 0) + more

    def set_total(self, what: str, value: float) -> None:
        """Set a total."""
        self.document.setdefault("counters", {})[what] = value


@functools.cache  # each change of the status file has it, and to read it takes milliseconds
def version() -> str:
    """Return the version of this program."""
    import importlib.metadata

    try:
        return importlib.metadata.version("edge-serve")
    except importlib.metadata.PackageNotFoundError:
        return ""


def read(layout: StateLayout) -> dict[str, Any]:
    """Return the document; {} = none that can be read."""
    try:
        found = find_object(files.read(layout.status, _MOST_BYTES) or b"")
    except OtaError:
        return {}
    return found if found and found.get("schema") == SCHEMA and _is_sound(found) else {}


def _is_sound(found: Mapping[str, Any]) -> bool:
    counters = found.get("counters", {})
    return (
        isinstance(found.get("models", {}), dict)
        and isinstance(counters, dict)
        and (isinstance(counters.get("failures", {}), dict))
    )


def free_bytes(layout: StateLayout) -> int:
    """Return the free bytes of the disk; 0 = unknown."""
    try:
        found = os.statvfs(layout.state_dir)
        return found.f_bavail * found.f_frsize
    except OSError:
        return 0
