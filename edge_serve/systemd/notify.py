"""Messages to the service manager (sd_notify(3)): what they say, and the socket that they go to."""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

#: messages that wait for a manager that does not read
_MOST_UNSENT = 32

#: bytes of a status: systemd ignores a message of more than 4096 bytes (PIPE_BUF) as a whole, its READY=1 too
_MOST_STATUS_BYTES = 3800

#: sends one message; raises OSError when it should be sent again later
Send = Callable[[str], object]


def ready(status: str, pid: int) -> str:
    """Return the message that the service has started or reloaded. MAINPID= names the main process."""
    return f"READY=1\nMAINPID={pid}\nSTATUS={_line(status)}"


def status(text: str) -> str:
    """Return the line that `systemctl status` shows."""
    return f"STATUS={_line(text)}"


def extend(seconds: float) -> str:
    """Return the message that the start, stop or reload in progress takes at most so long until the next message."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def reloading(now_ns: int) -> str:
    """Return the message that a reload begins. `now_ns` is CLOCK_MONOTONIC, which sets it apart from earlier ones."""
    return f"RELOADING=1\nMONOTONIC_USEC={now_ns // 1000}\nSTATUS=looking for changed models"


def stopping(text: str) -> str:
    """Return the message that the service stops."""
    return f"STOPPING=1\nSTATUS={_line(text)}"


def failed(text: str, errno: int | None = None) -> str:
    """Return the reason for which the process ends."""
    return f"STATUS={_line(text)}" + (f"\nERRNO={errno}" if errno else "")


def watchdog() -> str:
    """Return the message that feeds the watchdog."""
    return "WATCHDOG=1"


def trigger(reason: str) -> str:
    """Return the message that makes systemd restart the service at once, because only a restart helps."""
    return f"STATUS={_line(reason)}\nWATCHDOG=trigger"


def _line(text: str) -> str:
    """Return the text in one line, because a value ends with its line, and cut to `_MOST_STATUS_BYTES`."""
    line = " ".join(text.split())
    data = line.encode(errors="replace")
    return line if len(data) <= _MOST_STATUS_BYTES else data[:_MOST_STATUS_BYTES].decode(errors="ignore") + "..."


class Notifier:
    """Sends messages in order, and never blocks the loop. If the socket is full, messages follow with the next one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent: list[str] = []

    def notify(self, message: str) -> None:
        """Send a message, after those that could not be sent before. Messages that only repeat themselves go once."""
        if not self._unsent or self._unsent[-1] != message:
            self._unsent.append(message)
        del self._unsent[:-_MOST_UNSENT]
        with contextlib.suppress(OSError):  # full, or not there while the manager executes itself anew
            while self._unsent:
                self._send(self._unsent[0])
                del self._unsent[0]


def quiet(message: str) -> None:
    """Send nothing: the process has no service manager."""


def sender(environ: Mapping[str, str]) -> Send:
    """Return a sender to `NOTIFY_SOCKET`: our own socket, or for other kinds of addresses than a path and an abstract
    address the library `systemd` (python3-systemd, systemd-python), if it is installed.

    The library blocks while the manager does not read.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return quiet
    if address[0] in "/@":
        return socket_sender(address)
    try:
        notify: Send = importlib.import_module("systemd.daemon").notify
    except (ImportError, AttributeError):
        log.warning("NOTIFY_SOCKET is '%s', expected a path or an abstract address: the service manager hears nothing; "
                    "python3-systemd knows more kinds", address)  # fmt: skip
        return quiet
    return notify


def socket_sender(address: str) -> Send:
    """Return a sender to the datagram socket at a path, or at an abstract address, which begins with `@`."""
    path = "\0" + address[1:] if address[0] == "@" else address

    def send(message: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(errors="replace"), path)

    return send
