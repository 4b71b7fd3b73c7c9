"""`edge-serve status` and `edge-serve top`: what is said on the command line, and what the exit status means."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from edge_serve import __version__
from edge_serve.commands.options import OptionParser, seconds
from edge_serve.messages.line import one_line
from edge_serve.observe.status.client import (
    ABSENT,
    DEFAULT_SOCKET,
    DEFAULT_URL,
    UNKNOWN,
    StatusTarget,
    Unreachable,
    fetch,
    find_target,
)
from edge_serve.observe.status.report import Document, coloured, plain, report

READY, NOT_READY = 0, 1

#: between the two documents that the rates of one report come from
MEASURED_SECONDS = 1.0

_STATUSES = (
    f"exit status: {READY} ready, {NOT_READY} not ready (starting, stopping, safe mode), 2 wrong use, "
    f"{ABSENT} no server, {UNKNOWN} it does not tell, 74 the output cannot be written, 130 Ctrl-C"
)


def status(arguments: Sequence[str]) -> int:
    """Run `edge-serve status`. Return its exit status."""
    parser = _parser("status", "How the server on this device is.")
    parser.add_argument("--json", action="store_true", help="the whole document as JSON (docs/status.md), at once")
    options = parser.parse(arguments)
    return _told(lambda: _once(_target(options), as_json=options.json))


def top(arguments: Sequence[str]) -> int:
    """Run `edge-serve top`. Return its exit status."""
    parser = _parser("top", "The same, live: q or Ctrl-C ends it.")
    parser.add_argument(
        "--interval", type=seconds(0.1, 3600.0), default=1.0, metavar="S", help="seconds between looks (1)"
    )
    options = parser.parse(arguments)

    def show() -> int:
        target = _target(options)
        if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":  # a file, a pipe, or no screen: once
            return _once(target, as_json=False)
        from edge_serve.observe.status.top import run

        return run(target, options.interval)

    return _told(show)


def _told(work: Callable[[], int]) -> int:
    """Return the exit status of `work`. An error is printed as one line."""
    try:
        return work()
    except Unreachable as error:
        text, status = str(error), error.status
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        text = (
            f"the status is not as this release writes it ({type(error).__name__}: {error}); --json prints it as it is"
        )
        status = UNKNOWN
    print(f"edge-serve: {text}", file=sys.stderr)
    return status


def _once(target: StatusTarget, *, as_json: bool) -> int:
    document = fetch(target)
    if as_json:
        _print(json.dumps(document, indent=2))
    else:
        time.sleep(MEASURED_SECONDS)
        before, document = document, fetch(target)
        ansi = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
        paint = coloured if ansi else plain
        lines = report(before, document, paint, columns=_columns())
        _print("\n".join([*lines, *_outdated(document, target)]))
    return READY if document["server"]["state"] == "ready" else NOT_READY


def _columns() -> int:
    """Return the width of the terminal; 0 = unknown, or the output goes to a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    except (OSError, ValueError):
        return 0


def _outdated(document: Document, target: StatusTarget) -> list[str]:
    """Return a hint if the server does not run the installed version, as after an upgrade without a restart."""
    running = document["versions"].get("edge-serve", __version__)
    if not target.socket or running == __version__:
        return []
    return [
        "",
        f"the server runs version {one_line(running)}, installed is {__version__}: systemctl restart edge-serve",
    ]


def _print(text: str) -> None:
    """Print a text. A closed pipe, as of `| head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter flushes at its end


def _target(options: argparse.Namespace) -> StatusTarget:
    return find_target(os.environ, **read_server_options(options))


def _parser(name: str, text: str) -> OptionParser:
    parser = OptionParser(name, text, _STATUSES)
    add_server_options(parser)
    return parser


def read_server_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of `add_server_options` as arguments of `find_target`; "" = not given."""
    return {
        "url": options.url, "path": options.admin_socket, "token_file": options.token_file, "ca": options.ca_cert
    }  # fmt: skip


def add_server_options(parser: OptionParser) -> None:
    """Add the options that say which server to ask, and how."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--admin-socket", default="", metavar="PATH",
        help=f"the server's UNIX socket for administration ($EDGE_SERVE_ADMIN_SOCKET; else {DEFAULT_SOCKET}, if it is "
        "there, or if a request over HTTP would start the stopped service)",
    )  # fmt: skip
    where.add_argument(
        "--url", default="", help=f"ask over HTTP; without this option, and without a socket as above, {DEFAULT_URL}"
    )
    parser.add_argument("--token-file", default="", metavar="PATH", help="file with a bearer token for --url")
    parser.add_argument("--ca-cert", default="", metavar="PATH", help="certificates (PEM) to trust for an https --url")
