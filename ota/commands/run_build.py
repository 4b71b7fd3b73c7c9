"""`edge-ota run-build`: the command of edge-ota-build@.service. Reads one request from its socket."""

from __future__ import annotations

import argparse

from ota.layout import StateLayout
from ota.server.build import serve_build
from ota.settings import AgentSettings

HELP = "for edge-ota-build@.service: build the engine that a request on standard input names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the request and the settings have everything."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Serve one request."""
    return serve_build(StateLayout(settings.state_dir).releases, settings.edge_serve)
