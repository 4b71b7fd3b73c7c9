"""`edge-ota run-build`: the side of edge-ota-build@.service; reads one request from its socket."""

from __future__ import annotations

import argparse

from ota.layout import StateLayout
from ota.server.build import serve_build
from ota.settings import AgentSettings

HELP = "for edge-ota-build@.service: build the engine that a request on standard input names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments: all is in the request and in the settings."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Serve one request."""
    return serve_build(StateLayout(settings.state_dir).releases, settings.edge_serve)
