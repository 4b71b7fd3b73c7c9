"""`edge-ota rollback BUNDLE`: go back to the release before. No run brings the other one back, until `retry`."""

from __future__ import annotations

import argparse

from ota.agent.compose import opened
from ota.agent.operator import by_hand
from ota.agent.status_file import StatusFile
from ota.settings import AgentSettings
from ota.store import places
from ota.store.lock import locked

HELP = "serve the release before again; the other one is not installed again until 'retry'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BUNDLE, --why."""
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--why", default="", metavar="TEXT", help="for the history and the reports")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Roll back."""
    with opened(settings, by_hand=True) as parts, locked(parts.layout, "rollback"):
        places.prepare(parts.layout)
        entry = by_hand.roll_back(parts, arguments.bundle, arguments.why)
        StatusFile(parts.layout).bundle(parts.clock.now(), entry)
    print(f"{entry.bundle}: {f'release {entry.active} serves' if entry.active else 'no release serves'}")
    return 0
