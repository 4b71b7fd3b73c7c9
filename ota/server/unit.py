"""Runs work in a systemd unit that a socket starts (`Accept=yes`), because the agent has no permission to start units.

The agent writes one JSON object and reads one. If no socket is set, a child process does the work: for tests, the demo,
and a device without systemd. The unit's side takes only names from the request, never a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ota.errors import NotHeld, OtaError, ServerError, UsageError
from ota.strict_json import find_object

MOST_REQUEST = 64 * 1024
MOST_ANSWER = 16 * 1024 * 1024
#: seconds for the start of a unit and its Python
START_SECONDS = 30.0
#: seconds between two checks whether the agent still waits for a program
_WATCH_SECONDS = 0.5


def ask_unit(
    path: str,
    request: Mapping[str, Any],
    limit: float,
    hint: str = "see 'systemctl status edge-ota-trial.socket edge-ota-build.socket'",
) -> dict[str, Any]:
    """Send a request to the unit behind a socket, and return its response.

    Args:
        hint: what an operator does if the socket cannot be used.

    Raises:
        NotHeld: the socket cannot be used.
        ServerError: it does not start, does not answer in time, or answers with no JSON object.
    """
    end = time.monotonic() + limit + START_SECONDS
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            answer = _read_until(connection, end)
    except TimeoutError:
        raise ServerError(f"the unit behind {path} did not answer within {limit:g} s: see its journal") from None
    except OSError as error:
        raise NotHeld(f"the socket {path} cannot be used: {error.strerror or error}; {hint}") from error
    if (found := find_object(answer)) is None:
        shown = answer[:200].decode(errors="replace") if answer else "nothing"
        raise ServerError(f"the unit behind {path} answered {shown!r}, expected a JSON object: see its journal")
    return found


def ask_child(command: Sequence[str], limit: float, caller: BinaryIO | None = None) -> tuple[int, bytes, str]:
    """Run a program. Return its exit status, its standard output, and the end of its standard error.

    Args:
        caller: the connection of the agent, which may stop at any time: without it, the program is killed.

    Raises:
        ServerError: it cannot be started, takes longer than `limit` seconds, or the agent has closed `caller`.
    """
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise ServerError(f"{command[0]} cannot be started: {error.strerror or error}; set EDGE_SERVE") from error
    end, interval = time.monotonic() + limit, limit if caller is None else _WATCH_SECONDS
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = child.communicate(timeout=min(interval, max(0.0, end - time.monotonic())))
                break
            if time.monotonic() >= end:
                raise ServerError(f"'{' '.join(command[:3])} ...' did not end within {limit:g} s and was killed")
            if caller is not None and _is_closed(caller):
                raise ServerError(
                    f"'{' '.join(command[:3])} ...' was killed, because the agent that asked for it ended"
                )
    except BaseException:
        _end(child)
        raise
    return child.returncode, output[:MOST_ANSWER], errors[-4000:].decode(errors="replace").strip()


def _is_closed(connection: BinaryIO) -> bool:
    """Return whether the other end is closed. An end that only writes no more (SHUT_WR) is open."""
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP and POLLERR are always reported
    return bool(poll.poll(0))


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _read_until(connection: socket.socket, end: float) -> bytes:
    data = bytearray()
    while len(data) <= MOST_ANSWER:
        connection.settimeout(max(0.01, end - time.monotonic()))
        if not (block := connection.recv(64 * 1024)):
            break
        data += block
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(data)


def serve_one(answer: Callable[[Mapping[str, Any], BinaryIO], Mapping[str, Any]]) -> int:
    """Serve one request as a unit with StandardInput=socket. Return the exit status.

    Args:
        answer: returns the answer to a request; the second argument is the connection of the agent.
    """
    sink, status = sys.stdout.buffer, 0
    try:
        found = answer(_read_request(sys.stdin.buffer), sink)
    except OtaError as error:
        found, status = {"error": error.message, "reason": error.reason}, error.exit_status
    with contextlib.suppress(BrokenPipeError):  # the agent was killed
        sink.write(json.dumps(found).encode() + b"\n")
        sink.flush()
    return status


def _read_request(source: BinaryIO) -> dict[str, Any]:
    """Return the request that this unit received.

    Raises:
        UsageError: it did not come in time, or is not a JSON object.
    """
    end, data = time.monotonic() + START_SECONDS, bytearray()
    while not data.endswith(b"\n") and len(data) <= MOST_REQUEST:
        if not select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            raise UsageError(f"no request came within {START_SECONDS:g} s: this command is for the units of edge-ota")
        if not (block := os.read(source.fileno(), MOST_REQUEST)):
            break
        data += block
    if (found := find_object(bytes(data))) is None:
        raise UsageError(f"the request is {bytes(data[:80])!r}, expected a JSON object")
    return found


def check_below(path: object, root: Path) -> Path:
    """Return the path in a request if it lies in `root` and has no `..`.

    Raises:
        UsageError: it does not.
    """
    found = Path(str(path))
    if not isinstance(path, str) or not found.is_absolute() or ".." in found.parts or root not in found.parents:
        raise UsageError(f"the request names {path!r}, expected a path below {root}")
    return found
