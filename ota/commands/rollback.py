"""`edge-ota rollback BUNDLE`: serves the previous release again. Runs do not install the other one until `retry`."""

from __future__ import annotations

import argparse

from ota.agent.compose import open_local_components
from ota.agent.operator import actions
from ota.agent.status_file import StatusFile
from ota.settings import AgentSettings
from ota.store import directories
from ota.store.lock import acquire_lock

HELP = "serve the release before again; the other one is not installed again until 'retry'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BUNDLE, --why, --yes."""
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the history and the reports")
    parser.add_argument("--yes", action="store_true", help="also if no release of the bundle serves then")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Roll back. Works without the repository, the root, and the device's key."""
    components = open_local_components(settings)
    with acquire_lock(components.layout, "rollback"):
        directories.prepare(components.layout)
        entry = actions.roll_back(components, arguments.bundle, arguments.why, serve_none=arguments.yes)
        StatusFile(components.layout).bundle(components.clock.now(), entry)
    print(f"{entry.bundle}: {f'release {entry.active} serves' if entry.active else 'no release serves'}")
    return 0
