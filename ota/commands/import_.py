"""`edge-ota import DIR`: updates from a copy of the repository, such as a USB stick, with the same checks."""

from __future__ import annotations

import argparse
from pathlib import Path

from ota.agent.update import UpdateOptions
from ota.commands.apply import report, run_update
from ota.settings import AgentSettings

HELP = "update from a copy of the repository in a directory (made by 'edge-ota publish export')"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add DIR, --now, --json."""
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--now", action="store_true", help="switch now, also outside the switching hours")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run one update with a directory in place of the web servers."""
    outcomes = run_update(settings, UpdateOptions(now=arguments.now), "import", arguments.directory)
    return report(outcomes, settings, as_json=arguments.json)
