"""`edge-serve token`: adds a bearer token to a file of tokens, and prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_serve.access.credentials import new_token
from edge_serve.access.roles import GIVEN, parse_role
from edge_serve.commands.options import OptionParser, fail
from edge_serve.errors import EdgeServeError


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = OptionParser(
        "token",
        "Make a bearer token, add its hash to a file for --token-file, and print the token.",
        "Exit status: 0 done, 1 not done, 2 wrong use.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="file of tokens; it is made if there is none")
    parser.add_argument("role", metavar="ROLE", help=f"one of {', '.join(role.word for role in GIVEN)}")
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="whose token it is, for people")
    options = parser.parse(arguments)
    try:
        role = parse_role(options.role)
    except ValueError as error:
        parser.error(str(error))
    try:
        token = new_token(options.file, role, options.name)
    except (EdgeServeError, ValueError) as error:
        return fail(getattr(error, "message", str(error)))
    except OSError as error:
        return fail(f"cannot write '{options.file}': {error.strerror}")
    print(token)
    return 0
