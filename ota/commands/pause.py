"""`edge-ota pause` and `edge-ota resume`: stop and allow updates. Models keep serving."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

from ota.agent.operator import actions
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import directories

HELP: Mapping[str, str] = {
    "pause": "make no updates until 'resume'; a release in probation is still judged",
    "resume": "let updates go on after 'pause'",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --why."""
    parser.add_argument("--why", default="", metavar="TEXT", help="for 'status' and the history")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Pause or resume."""
    layout = StateLayout(settings.state_dir)
    directories.prepare(layout)
    if arguments.command == "pause":
        if not actions.pause_updates(layout, arguments.why, time.time()):
            print("a run is at work: it ends before its next step; the history lacks this pause", file=sys.stderr)
        print("updates are paused: 'edge-ota resume' lets them go on")
    elif actions.resume_updates(layout, time.time()):
        print("updates go on with the next run of the timer, or with 'edge-ota apply'")
    else:
        print("updates were not paused")
    return 0
