"""`edge-serve safe-mode`: says which models a server left out, and lets it load them again.

A server that runs receives the order over its socket for administration. Where there is no such socket, or when a
directory is named, the file with the record is removed, which has the same effect. Docs: docs/supervision.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_serve.commands.options import OptionParser, fail
from edge_serve.observe.status.client import ABSENT, DEFAULT_SOCKET, StatusTarget, Unreachable, leave_safe_mode
from edge_serve.supervision import safe_mode as record_file
from edge_serve.supervision.crash_loop import Record

DEFAULT_DIRECTORY = "/var/lib/edge-serve"
#: a running server checks once a second whether its record was removed
_NOTICED_SECONDS = 10.0


def safe_mode(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command. Return its exit status: 0 done, 1 with a line on standard error. Wrong use ends the program."""
    options = _parser().parse(arguments)
    given = environ.get("EDGE_SERVE_STATE_DIRECTORY") or environ.get("STATE_DIRECTORY", "").partition(":")[0]
    directory = Path(options.directory or given or DEFAULT_DIRECTORY)
    try:
        if not options.leave:
            print(report(record_file.read(directory)))
            return 0
        socket = environ.get("EDGE_SERVE_ADMIN_SOCKET", "") or ("" if given else DEFAULT_SOCKET)
        return _leave_safe_mode(directory, socket if not options.directory and os.path.lexists(socket) else "")
    except FileNotFoundError:
        expected = f"expected the server's state directory (--state-directory; the service's is {DEFAULT_DIRECTORY})"
        if not directory.is_dir():
            return fail(f"no directory '{directory}': {expected}")
        return fail(f"no server has kept a record of crashes in '{directory}': {expected}")
    except OSError as error:
        hint = "; run it as root (sudo) or as the service's user, or see 'edge-serve status'"
        text = f"cannot open '{error.filename}': {error.strerror}"
        return fail(text + hint if isinstance(error, PermissionError) else text)


def _parser() -> OptionParser:
    parser = OptionParser(
        "safe-mode",
        "Show which models the server left out after repeated crashes, and why; with --leave, load them again.",
        "Exit status: 0 done, 1 not done (no such directory, no permission, a server that refuses), 2 wrong use.",
    )
    parser.add_argument("--leave", action="store_true", help="load these models now, and clear the record of crashes")
    parser.add_argument(
        "directory", metavar="DIRECTORY", nargs="?", default="",
        help=f"the server's --state-directory ($EDGE_SERVE_STATE_DIRECTORY, else {DEFAULT_DIRECTORY})",
    )  # fmt: skip
    return parser


def report(record: Record) -> str:
    """Return the models that are left out, and the reasons, as text."""
    word = "tried again after it was left out" if record.trying else "left out"
    lines = [f"{name} is {word}: {one.reason}" for name, one in sorted(record.left_out.items())]
    if record.deaths:
        lines.append(record.count_deaths())
    return "\n".join(lines) or "no model is left out"


def _leave_safe_mode(directory: Path, socket: str) -> int:
    if socket:
        try:
            _say_left(leave_safe_mode(StatusTarget(socket)), running=True)
            return 0
        except Unreachable as error:
            if error.status != ABSENT:
                return fail(str(error))
    names = sorted(record_file.read(directory).left_out)
    running = record_file.is_in_use(directory)
    record_file.remove(directory)
    if running and not _noticed(directory):
        return fail(f"the record is removed, but the running server did not notice within {_NOTICED_SECONDS:g} s: "
                     "restart it (systemctl restart edge-serve)")  # fmt: skip
    _say_left(names, running=running)
    return 0


def _noticed(directory: Path) -> bool:
    """Wait for the running server to write a record in which no model is left out."""
    end = time.monotonic() + _NOTICED_SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
        if (directory / record_file.FILE).exists():
            if not record_file.read(directory).left_out:
                return True
            record_file.remove(directory)  # it was being written at the same moment
    return not record_file.is_in_use(directory)  # ended meanwhile


def _say_left(names: Sequence[str], *, running: bool) -> None:
    if not names:
        print("no model is left out")
    elif running:
        print(f"safe mode is left: the server loads {', '.join(names)} now; 'edge-serve status' shows how that goes")
    else:
        print(f"safe mode is left: the next start loads {', '.join(names)} (systemctl start edge-serve)")
