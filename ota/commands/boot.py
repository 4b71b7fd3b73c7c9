"""`edge-ota boot`: runs before edge-serve starts. Works offline, and always returns 0."""

from __future__ import annotations

import argparse
import sys
import time

from ota.agent.boot import Boot
from ota.settings import AgentSettings

HELP = "before edge-serve starts: heal links, and roll back a new release that does not survive starts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run the boot step."""
    Boot(settings, time.time(), lambda text: print(f"edge-ota: {text}", file=sys.stderr)).run()
    return 0
