"""`edge-ota identity`: print the name and the fingerprint of this device. Creates its key if there is none."""

from __future__ import annotations

import argparse

from ota.agent.device.facts import device_name
from ota.agent.device.identity import open_identity
from ota.layout import StateLayout
from ota.settings import AgentSettings

HELP = "print the name and the key's fingerprint of this device; create the key if there is none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Print them."""
    identity = open_identity(settings, StateLayout(settings.state_dir).identity)
    print(f"device: {device_name(settings, identity.fingerprint)}, key {identity.fingerprint}")
    return 0
