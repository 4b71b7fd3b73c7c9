"""`edge-ota explain BUNDLE`: shows why this device runs a release, and the judgement on each variant."""

from __future__ import annotations

import argparse
import json

from ota.agent.compose import open_components
from ota.agent.desired import check_bundles
from ota.agent.operator.plan import explain
from ota.agent.update import Update
from ota.commands.check import document, shown
from ota.settings import AgentSettings
from ota.store import directories
from ota.store.lock import acquire_lock

HELP = "show why this device runs a release, and why each variant was taken or not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add BUNDLE, --json."""
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print the decision, the facts, and the variants."""
    components = open_components(settings, by_hand=True)
    with acquire_lock(components.layout, "explain"):
        directories.prepare(components.layout)
        rollout = Update(components).look()
        check_bundles(rollout, [arguments.bundle])
        planned, judged = explain(components, rollout, arguments.bundle)
        facts = dict(components.device.facts())
    if arguments.json:
        variants = [{"id": one.variant.id, "why_not": one.why_not} for one in judged]
        print(json.dumps({**document(planned), "variants": variants, "facts": facts}, indent=2))
        return 0
    print(shown(planned))
    for one in judged:
        print(f"  variant {one.variant.id}: {one.why_not or 'fits'}")
    for name, value in sorted(facts.items()):
        print(f"  {name} = {value}")
    return 0
