"""`edge-ota import DIR`: updates from a copy of the repository, such as a USB stick, with the same checks."""

from __future__ import annotations

import argparse
from pathlib import Path

from ota.agent.compose import open_components
from ota.agent.reports.reporter import report_run
from ota.agent.update import Update, UpdateOptions
from ota.commands.apply import report
from ota.settings import AgentSettings

HELP = "update from a copy of the repository in a directory (made by 'edge-ota publish export')"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add DIR, --now, --json."""
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--now", action="store_true", help="switch now, also outside the switching hours")
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run one update with a directory in place of the web servers."""
    with (
        open_components(settings, by_hand=True, directory=arguments.directory) as components,
        report_run(components) as reporter,
    ):
        outcomes = Update(components, UpdateOptions(now=arguments.now)).run("import")
        reporter.note((one.bundle, one.error) for one in outcomes)
    return report(outcomes, settings, as_json=arguments.json)
