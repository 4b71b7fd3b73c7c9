"""`edge-ota verify`: reads the releases on this disk, and compares them with their records."""

from __future__ import annotations

import argparse
import json
import sys

from ota.agent.compose import open_components
from ota.agent.operator import repair
from ota.agent.operator.printer import ProgressPrinter
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import directories, journal, scrub
from ota.store.lock import acquire_lock

HELP = "read the installed releases, and find files that changed on disk"

#: the way out for damage that a repair leaves
_LEFT = (
    "remove files that are not of a release; a release that serves without its record is installed again by "
    "'edge-ota apply', and one before it is replaced when a newer one serves"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --repair, --json."""
    parser.add_argument("--repair", action="store_true", help="fetch damaged files again, and put them in place")
    parser.add_argument("--json", action="store_true", help="print the damage as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print the damage. Return 5 if any is left."""
    layout, tell = StateLayout(settings.state_dir), ProgressPrinter()
    directories.check_readable(layout)
    releases = repair.installed(layout)
    found = list(scrub.scrub(layout, releases, lambda model, release: tell(f"reading {model} {release}")))
    if found and arguments.repair:
        components = open_components(settings, by_hand=True)
        with acquire_lock(layout, "verify"):
            found = repair.repair(components, found)
    if arguments.json:
        rows = [{"model": one.model, "release": one.release, "path": one.path, "found": one.found} for one in found]
        print(json.dumps({"releases": len(releases), "damage": rows}, indent=2))
    else:
        for one in found:
            print(one)
        print(f"{len(releases)} releases read, {len(found) or 'no'} damaged files")
    if found:
        hint = "'edge-ota verify --repair' fetches them again" if not arguments.repair else _LEFT
        print(f"edge-ota: {hint}; then check the disk", file=sys.stderr)
    lost = [bundle for bundle in journal.bundles(layout) if journal.read(layout, bundle) is None]
    for bundle in lost:
        print(f"edge-ota: the journal of {bundle} is torn or missing: 'edge-ota apply' rebuilds it", file=sys.stderr)
    return StoreError.exit_status if found or lost else 0
