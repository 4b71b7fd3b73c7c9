"""`edge-ota apply`: updates this device to the releases that it should run. The timer runs it with --scheduled."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ota.agent.compose import open_components
from ota.agent.reports.reporter import report_run
from ota.agent.system.plans import open_plans
from ota.agent.update import BundleOutcome, Update, UpdateOptions
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import pause

HELP = "update: refresh, fetch, install, try, switch, and watch the new releases"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BUNDLE ..., --now, --scheduled, --json."""
    parser.add_argument("bundle", nargs="*", metavar="BUNDLE", help="these bundles only")
    parser.add_argument("--now", action="store_true", help="switch now, also outside the switching hours")
    parser.add_argument(
        "--scheduled",
        action="store_true",
        help="as the timer: keep download hours, metered links, and the waits after failures",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run one update."""
    if arguments.scheduled:  # a system that was confirmed since may lack plans of releases that do not serve
        plans = open_plans(settings, lambda text: print(f"edge-ota: {text}", file=sys.stderr))
        try:
            plans.prepare()
        except StoreError as error:  # a full disk, on which the run collects garbage
            plans.record_failure(error)
    options = UpdateOptions(by_hand=not arguments.scheduled, now=arguments.now, only=tuple(arguments.bundle))
    return report(run_update(settings, options, "apply"), settings, as_json=arguments.json)


def run_update(
    settings: AgentSettings, options: UpdateOptions, command: str, directory: Path | None = None
) -> list[BundleOutcome]:
    """Run one update, and send the report on it.

    Args:
        directory: a copy of the repository, in place of the web servers.
    """
    components = open_components(settings, by_hand=options.by_hand, directory=directory)
    with report_run(components) as reporter:
        outcomes = Update(components, options).run(command)
        reporter.note((one.bundle, one.error) for one in outcomes)
    return outcomes


def report(outcomes: list[BundleOutcome], settings: AgentSettings, *, as_json: bool) -> int:
    """Print the result of a run. Return the exit status of its first error."""
    if as_json:
        print(json.dumps([_document(one) for one in outcomes], indent=2))
    for one in outcomes:
        if not as_json and one.error is None:
            serves = f"release {one.release} serves" if one.release else "no release serves"
            print(f"{one.bundle}: {serves}{f'; {one.waiting_for}' if one.waiting_for else ''}")
        elif one.error is not None:
            print(f"edge-ota: {one.bundle}: {' '.join(one.error.message.split())}", file=sys.stderr)
    if not outcomes and not as_json and not pause.read(StateLayout(settings.state_dir)):
        print("nothing to do: the fleet of this device has no releases, and none is installed")
    return next((one.error.exit_status for one in outcomes if one.error is not None), 0)


def _document(one: BundleOutcome) -> dict[str, object]:
    return {
        "bundle": one.bundle,
        "release": one.release,
        "waiting_for": one.waiting_for,
        "error": {"reason": one.error.reason, "message": one.error.message} if one.error else None,
    }
