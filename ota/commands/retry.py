"""`edge-ota retry [BUNDLE]`: clears failures, so that the releases are tried again on this device."""

from __future__ import annotations

import argparse
import time

from ota.agent.operator import actions
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import directories
from ota.store.lock import acquire_lock

HELP = "give releases that failed on this device another chance"
_PATIENCE = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BUNDLE, --release."""
    parser.add_argument("bundle", nargs="?", default="", metavar="BUNDLE", help="of this bundle only")
    parser.add_argument("--release", type=int, default=0, metavar="N", help="this release only")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Clear the bad list."""
    layout = StateLayout(settings.state_dir)
    with acquire_lock(layout, "retry", _PATIENCE):
        directories.prepare(layout)
        count = actions.retry(layout, arguments.bundle, arguments.release, time.time())
    failures = "1 failure" if count == 1 else f"{count} failures"
    print(f"{failures} cleared; the next run tries again ('edge-ota apply' does so now)")
    return 0
