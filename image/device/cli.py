"""The commands of a device, which its units call.

Python's start is slow there, so each command imports its own module only, and values are `NamedTuple`: importing
`dataclasses`, which brings `inspect`, would be a third of the start of `provision`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

#: command -> module of this package, whose `main` returns the exit status
COMMANDS: Mapping[str, str] = {
    "provision": "provision.flow",
    "console": "console.service",
    "health": "health",
    "slot": "slot",
    "scrub": "scrub",
    "data": "data.space",
    "last-stop": "data.last_stop",
    "system": "system",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    place = COMMANDS.get(arguments[0]) if len(arguments) == 1 else None
    if place is None:
        print(f"edge-device: found {' '.join(arguments)!r}, expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"image.device.{place}").main()
    return status
