"""`edge-ota run-trial`: the command of edge-ota-trial@.service. Reads one request from its socket."""

from __future__ import annotations

import argparse

from ota.layout import StateLayout
from ota.server.trial import serve_trial
from ota.settings import AgentSettings

HELP = "for edge-ota-trial@.service: try the release that a request on standard input names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the request and the settings have everything."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Serve one request."""
    return serve_trial(StateLayout(settings.state_dir).trial, settings.edge_serve)
