"""`edge-ota status` and `edge-ota history`: show the state of updates and past events. Work offline and without the
lock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ota.agent import status_file
from ota.agent.device.facts import device_name
from ota.agent.device.identity import public_identity
from ota.agent.reports import outbox
from ota.agent.system.state import as_journal, find_state
from ota.documents.names import SYSTEM
from ota.layout import StateLayout
from ota.settings import AgentSettings, find_file
from ota.store import bad, directories, history, journal, pause
from ota.store.journal import Journal
from ota.trust import clock_floor
from ota.trust.floors import Floors

HELP: Mapping[str, str] = {
    "status": "show the releases, what is on its way, and what is to be done where something waits",
    "history": "show what happened to the releases of this device",
}

#: how long status shows that the floors were lost
_LOST_SECONDS = 30 * 86400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print the state or the history."""
    layout = StateLayout(settings.state_dir)
    directories.check_readable(layout)
    if arguments.command == "history":
        events = history.read(layout)
        print(json.dumps(events, indent=2) if arguments.json else "\n".join(map(_event, events)) or "nothing yet")
        return 0
    if arguments.json:
        print(json.dumps(_document(layout, settings), indent=2))
    else:
        print("\n".join(_lines(layout, settings, find_file(arguments.config, os.environ))))
    return 0


def _document(layout: StateLayout, settings: AgentSettings) -> dict[str, Any]:
    found = pause.read(layout)
    rows = [{name: getattr(one, name) for name in one.__slots__} for one in bad.load(layout).entries]
    document = {**status_file.read(layout), "bad": rows}
    document["paused"] = {"since": found.since, "why": found.why} if found else None
    floors = Floors([layout.floors, settings.floor_copy])
    document["device"], document["fingerprint"] = _device(layout, settings)
    document["reports_waiting"] = len(outbox.waiting(layout))
    document["floors_lost"], document["floors_warnings"] = floors.lost or None, floors.warnings
    return document


def _lines(layout: StateLayout, settings: AgentSettings, file: Path) -> Iterator[str]:
    document, now = status_file.read(layout), time.time()
    if not layout.state_dir.is_dir():
        yield f"edge-ota never ran here: {layout.state_dir} does not exist"
        exists = "" if file.exists() else ", which does not exist"
        yield f"settings: {file}{exists}; --config FILE or EDGE_OTA_CONFIG names another file"
        return
    checked = _ago(document.get("last_success"), now)
    name, fingerprint = _device(layout, settings)
    key = f"key {fingerprint}" if fingerprint else "no key yet: 'edge-ota check' creates it"
    yield f"device: {name}, {key}" if name else f"device: one without a name, {key}"
    yield f"agent: {document.get('state') or 'never ran'}, last successful check {checked}"
    if (paused := pause.read(layout)) is not None:
        yield f"paused: {paused.why or 'by an operator'}: 'edge-ota resume' lets updates go on"
    error = document.get("error")
    if isinstance(error, dict):
        yield f"last error: {error.get('reason')}: {error.get('message')}"
    for role, when in sorted(_table(document, "metadata_expires").items()):
        if isinstance(when, (int, float)) and when < now + 86400:
            verb = "expired" if when < now else "expires"
            yield f"metadata: {role} {verb} {_ago(when, now)}: a refresh needs the repository"
    yield from _floors(layout, settings, now)
    if waiting := len(outbox.waiting(layout)):
        yield f"reports: {waiting} are waiting; each run of 'edge-ota apply' sends them, or prints why it cannot"
    bundles = journal.bundles(layout)
    for bundle in bundles:
        entry = journal.read(layout, bundle)
        reason = _table(_table(document, "models"), bundle).get("reason")
        yield (
            _bundle(entry, str(reason or ""))
            if entry
            else f"{bundle}: its journal is torn: 'edge-ota apply' rebuilds it"
        )
    if (system := find_state(settings.system_root)) is not None:
        reason = _table(_table(document, "models"), SYSTEM).get("reason")
        yield _bundle(as_journal(system, layout), str(reason or ""))
    if not bundles:
        where = " ".join(one.rpartition("@")[2] for one in settings.url) or "the repository (URL is not set)"
        yield f"no release is installed; 'edge-ota check' asks {where}"
    for one in bad.load(layout).entries:
        until = "" if one.permanent else f" (until {time.strftime('%Y-%m-%d %H:%M', time.localtime(one.until))})"
        hint = f"'edge-ota retry {one.bundle}' tries it again" if one.bundle != SYSTEM else "publish a higher version"
        yield f"failed here: {one.bundle} {one.release} {one.variant}{until}: {one.reason}: {one.message}; {hint}"


def _device(layout: StateLayout, settings: AgentSettings) -> tuple[str, str]:
    fingerprint, _ = public_identity(layout.identity)
    return device_name(settings, fingerprint) if fingerprint else settings.device, fingerprint


def _floors(layout: StateLayout, settings: AgentSettings, now: float) -> Iterator[str]:
    floors = Floors([layout.floors, settings.floor_copy])
    yield from floors.warnings
    if clock_floor.judge(now, floors, synchronized=True).unset:
        yield f"clock: {clock_floor.UNSET}"
    if floors.lost and now - floors.lost < _LOST_SECONDS:
        yield (
            f"both copies of the version floors were lost {_ago(floors.lost, now)}, and began anew from the metadata: "
            "check whether this disk was restored from an old copy"
        )


def _bundle(entry: Journal, reason: str) -> str:
    following = entry.next
    serves = f"release {entry.serving()} serves" if entry.serving() else "no release serves"
    text = f"{entry.bundle}: {serves}"
    if entry.previous:
        text += f" (before: {entry.previous})"
    if following is None:
        return f"{text}; {reason}" if reason else text
    text += f"; {following.release} is {following.stage.value}"
    if following.stage is journal.UpdateStage.PROBATION:
        text += f" ({following.tries} starts left)"
    hint = "the next run continues; 'edge-ota apply' does so now"
    if reason and " " not in reason:  # a reason word of ota.errors; the message is the last error
        reason = f"the last try failed ({reason}), and the next run tries again"
    return f"{text}: {reason or hint}"


def _event(found: Mapping[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found.get("time", 0))))
    release = f"{found.get('bundle', '')} {found.get('release') or ''} {found.get('variant') or ''}".strip()
    text = ": ".join(str(found[name]) for name in ("reason", "message") if found.get(name))
    return " ".join(filter(None, (when, str(found.get("event", "")).ljust(11), release, f"({text})" if text else "")))


def _ago(when: object, now: float) -> str:
    if not isinstance(when, (int, float)):
        return "never"
    seconds = abs(now - when)
    amount = f"{seconds / 86400:.0f} days" if seconds >= 172800 else f"{seconds / 60:.0f} minutes"
    return f"{amount} ago" if when <= now else f"in {amount}"


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}
