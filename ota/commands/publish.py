"""`edge-ota publish SUBCOMMAND`: manages keys, bundles, releases, and rollouts on the publisher's machine."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from ota.errors import UsageError
from ota.files import to_store_error
from ota.publish.commands import MODULES
from ota.settings import AgentSettings

HELP = "sign and publish releases, on the publisher's machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    subcommands = parser.add_subparsers(metavar="SUBCOMMAND")
    subcommands.required = True
    for name in MODULES:
        importlib.import_module(f"ota.publish.commands.{name}").add_parsers(subcommands)


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run a subcommand."""
    try:
        status: int = arguments.publish(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise to_store_error(error, Path()) from None
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("tuf", "securesystemslib", "cryptography"):
            raise UsageError(f"{error.name} is not installed: pip install 'edge-serve[ota]'") from None
        raise
    return status
