"""Names under which the server starts, and the defaults that each name changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from edge_serve.records import frozen


@frozen
class Program:
    """A command that starts the server.

    Attributes:
        defaults: values of settings, by name, where this command's default is not that of `ServerConfig`.
    """

    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


EDGE_SERVE = Program("edge-serve")
#: Triton's own command line: it listens on every address (server src/command_line_parser.h)
TRITONSERVER = Program("tritonserver", {"http_address": "0.0.0.0", "grpc_address": "0.0.0.0"})


def program_of(path: str) -> Program:
    """Return the program that was started by this path (`sys.argv[0]`)."""
    return TRITONSERVER if Path(path).name == TRITONSERVER.name else EDGE_SERVE
