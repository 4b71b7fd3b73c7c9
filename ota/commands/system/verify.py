"""`edge-ota verify-system N`: the root side of system updates runs it as root, before it writes a slot."""

from __future__ import annotations

import argparse
import sys

from ota.agent.system.verify import verify
from ota.clock import SystemClock
from ota.settings import AgentSettings

HELP = "for edge-system@.service: verify a staged system, and print its signed document"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add N."""
    parser.add_argument("version", type=int, metavar="N", help="the version that is staged")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print the document."""
    sys.stdout.write(verify(settings, arguments.version, SystemClock()).decode())
    return 0
