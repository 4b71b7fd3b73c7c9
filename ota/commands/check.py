"""`edge-ota check` and `edge-ota plan`: refresh the metadata, and show what an update would do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from ota.agent.compose import open_components
from ota.agent.operator.plan import PlannedUpdate, plan
from ota.agent.update import Update
from ota.settings import AgentSettings
from ota.store import directories, pause
from ota.store.lock import acquire_lock

HELP: Mapping[str, str] = {
    "check": "refresh the metadata, and show which releases this device should run",
    "plan": "show what 'apply' would do: variants, bytes, and what it would wait for",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BUNDLE ..., --json."""
    parser.add_argument("bundle", nargs="*", metavar="BUNDLE", help="these bundles only")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print a line for each bundle. Return the exit status of the first error."""
    detailed = arguments.command == "plan"
    components = open_components(settings, by_hand=True)
    with acquire_lock(components.layout, arguments.command):
        directories.prepare(components.layout)
        found = plan(components, Update(components).look(), arguments.bundle, detailed=detailed)
        if pause.read(components.layout):
            print("updates are paused: 'edge-ota resume'", file=sys.stderr)
    if arguments.json:
        print(json.dumps([document(one) for one in found], indent=2))
    else:
        for one in found:
            print(shown(one))
    return next((one.error.exit_status for one in found if one.error), 0)


def shown(one: PlannedUpdate) -> str:
    """Return a line about a bundle."""
    serves = f"{one.bundle}: release {one.release} serves" if one.release else f"{one.bundle}: no release serves"
    text = f"{serves}, {one.wanted} is wanted" if one.is_due else f"{serves}, nothing to do"
    if one.taken_back:
        text = f"{serves}, {one.taken_back} is taken back before its restart"
        text += f", {one.wanted} is wanted" if one.is_due else ""
    if one.variant:
        text += f": variant {one.variant}, {one.missing_bytes} bytes to fetch"
    if one.why:
        text += f" ({one.why})"
    return f"{text}: {one.error.message}" if one.error else text


def document(one: PlannedUpdate) -> dict[str, object]:
    """Return the JSON of a bundle."""
    return {
        "bundle": one.bundle,
        "release": one.release,
        "wanted": one.wanted,
        "why": one.why,
        "taken_back": one.taken_back,
        "variant": one.variant,
        "missing_bytes": max(0, one.missing_bytes),
        "error": {"reason": one.error.reason, "message": one.error.message} if one.error else None,
    }
