"""`system`: publishes a version of the devices' system, which `make image` built."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ota.publish.commands import Subcommands, add, open_workspace, print_result


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    system = add(subcommands, "system", _system, "publish a version of the devices' system")
    system.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="edge_N.root, edge_N.verity, and edge_N.efi"
    )
    system.add_argument(
        "--needs-version", type=int, default=0, metavar="N", help="the lowest version that can install this one"
    )
    system.add_argument(
        "--state-schema", type=int, default=0, metavar="N",
        help="refuse an image that writes another format of the data partition (the image names its own)",
    )  # fmt: skip


def _system(arguments: argparse.Namespace) -> int:
    from ota.publish.system.image import read_image
    from ota.publish.system.publish import SystemOptions, publish

    image = read_image(arguments.files)
    options = SystemOptions(arguments.needs_version, arguments.state_schema)
    with open_workspace(arguments) as (workspace, state):
        document, waiting = publish(workspace, state, image, options, time.time())
        size = sum(one.size for one in document.files.values())
        done = f"published: {document.title}, {size} bytes"
        return print_result(
            workspace, waiting, f"{done}; devices take it after 'edge-ota publish rollout start FLEET system'"
        )
