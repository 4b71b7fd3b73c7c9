"""`edge-ota run-plans`: the command of edge-plans.service, between the start of the server and the health gate."""

from __future__ import annotations

import argparse
import sys

from ota.agent.system.plans import open_plans
from ota.settings import AgentSettings

HELP = "for edge-plans.service: build the TensorRT plans that the system of this device lacks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Build what is missing. A build that fails is recorded; the health gate judges its model."""
    open_plans(settings, lambda text: print(f"edge-ota: {text}", file=sys.stderr)).prepare()
    return 0
