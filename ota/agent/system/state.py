"""Reads the state of the system: /etc/os-release of the image, and the record that the root side writes."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from ota import files
from ota.decide.system import SystemState
from ota.documents.names import SYSTEM
from ota.errors import OtaError, Unsuitable
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import system_stage
from ota.store.journal import Journal, NextRelease, UpdateStage
from ota.strict_json import find_object

#: below `system_root`
OS_RELEASE = Path("etc/os-release")
RECORD = Path("var/lib/edge-system/slots.json")
STATE_SCHEMA = Path("var/lib/edge-device/schema")
DEVICE_STATUS = Path("run/edge-device/status.json")
#: of images from before the profile was in os-release: all of them were of this one
DEFAULT_PROFILE = "base"
_MOST_BYTES = 64 * 1024


def find_state(root: Path) -> SystemState | None:
    """Return the state of the system; None = this device is not of the image. Needs no permission and no network.

    A record that cannot be read counts as lost. The root side, which has its copy on the boot partition, decides.
    """
    text = (_read(root / OS_RELEASE) or b"").decode(errors="replace")
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))
    version = release.get("IMAGE_VERSION", "")
    if not release.get("IMAGE_ID") or not re.fullmatch("[1-9][0-9]{0,8}", version):
        return None
    record = _object(root / RECORD)
    schema = (_read(root / STATE_SCHEMA) or b"").strip()
    return SystemState(
        product=release["IMAGE_ID"],
        profile=release.get("VARIANT_ID") or DEFAULT_PROFILE,
        arch=platform.machine(),
        version=int(version),
        confirmed=tuple(one for one in _list(record.get("confirmed")) if isinstance(one, int)),
        bad={int(one): str(why) for one, why in _table(record.get("bad")).items() if one.isdecimal()},
        pending=_number(record.get("pending")),
        previous=_number(record.get("previous")),
        state_schema=int(schema) if re.fullmatch(b"[0-9]{1,9}", schema) else 0,
    )


def open_layout(settings: AgentSettings) -> StateLayout:
    """Return the state directory of this device under the system that runs."""
    state = find_state(settings.system_root)
    return StateLayout(settings.state_dir, state.version if state else 0)


def read_state(root: Path) -> SystemState:
    """Return the state of the system.

    Raises:
        Unsuitable: this device is not of the image.
    """
    found = find_state(root)
    if found is None:
        raise Unsuitable(
            f"{root / OS_RELEASE} has no IMAGE_ID and IMAGE_VERSION: this device does not run the device image, "
            "so its system is not updated by edge-ota. Use its package manager"
        )
    return found


def device_status(root: Path) -> dict[str, Any]:
    """Return the device's own status document; {} = there is none."""
    return _object(root / DEVICE_STATUS)


def is_begun(state: SystemState, layout: StateLayout) -> bool:
    """Return whether a version has files here, or waits for its restart."""
    return bool(state.waiting) or system_stage.has_files(layout)


def as_journal(state: SystemState, layout: StateLayout) -> Journal:
    """Return the state in the form of a bundle's journal, for status and reports. It is never written."""
    following, variant = None, f"{state.profile}-{state.arch}"
    document = system_stage.staged(layout)
    if state.is_tried:
        active = max(state.confirmed, default=0)
        following = NextRelease(state.version, variant, UpdateStage.PROBATION, 0, 0.0)
        return Journal(SYSTEM, {}, active, 0, following)
    if state.waiting:
        following = NextRelease(state.waiting, variant, UpdateStage.READY, 0, 0.0, "waits for its restart")
    elif document is not None and document.version > state.version and document.version not in state.bad:
        is_ready = system_stage.is_assembled(layout, document)
        stage = UpdateStage.TESTED if is_ready else UpdateStage.PLANNED
        following = NextRelease(document.version, variant, stage, 0, 0.0)
    return Journal(SYSTEM, {}, state.version, state.previous, following)


def _read(path: Path) -> bytes | None:
    try:
        return files.read(path, _MOST_BYTES)
    except OtaError:
        return None


def _object(path: Path) -> dict[str, Any]:
    return find_object(_read(path) or b"") or {}


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _table(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _number(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0
