"""`edge-ota run-trial` and `run-build`: the commands of edge-ota-trial@.service and edge-ota-build@.service.

Each reads one request from its socket.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ota.layout import StateLayout
from ota.server.build import serve_build
from ota.server.trial import serve_trial
from ota.settings import AgentSettings

HELP: Mapping[str, str] = {
    "run-trial": "for edge-ota-trial@.service: try the release that a request on standard input names",
    "run-build": "for edge-ota-build@.service: build the engine that a request on standard input names",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the request and the settings have everything."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Serve one request."""
    layout = StateLayout(settings.state_dir)
    if arguments.command == "run-trial":
        return serve_trial(layout.trial, settings.edge_serve)
    return serve_build(layout.releases, settings.edge_serve)
