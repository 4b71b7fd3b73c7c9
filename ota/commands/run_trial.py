"""`edge-ota run-trial`: the side of edge-ota-trial@.service; reads one request from its socket."""

from __future__ import annotations

import argparse

from ota.layout import StateLayout
from ota.server.trial import serve_trial
from ota.settings import AgentSettings

HELP = "for edge-ota-trial@.service: try the release that a request on standard input names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments: all is in the request and in the settings."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Serve one request."""
    return serve_trial(StateLayout(settings.state_dir).trial, settings.edge_serve)
