"""The console: shows the device's facts and faults on the screen and the serial line, and updates the status file.

One process waits for changes: of addresses (netlink), and of the files that the facts come from (inotify). Nothing can
be typed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import termios
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from image.device.report import RUN, update_status

SCREENS = ("/dev/tty1", "/dev/ttyS0")
#: directories whose changes may change a fact; those that do not exist yet are watched by their parents
_WATCHED = (
    "run/edge-device/faults", "boot/EFI/Linux", "var/lib/edge-device", "var/lib/edge-ota", "var/lib/edge-ota/identity",
)  # fmt: skip
_NETLINK_ADDRESSES = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR (rtnetlink(7))
_INOTIFY = 0x40 | 0x80 | 0x100 | 0x200 | 0x8  # moved from, moved to, create, delete, close after writing (inotify(7))
#: changes come in groups: a screen is drawn when none came for so long
_QUIET_MS = 300
_COLUMNS = 78
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"


def screen(status: Mapping[str, Any]) -> list[str]:
    """Return the lines for a status document."""
    name, addresses = status["name"], status["addresses"]
    system = f"version {status['version'] or '?'}, slot {status['slot'] or '?'}"
    rows = [
        ("Name", f"{name} ({name}.local)"),
        ("Address", ", ".join(addresses) or "none yet: is the network cable connected?"),
        ("Page", "  ".join(pages(status))),
        ("Key", status["fingerprint"] or "none yet"),
        ("System", "; ".join([system, *_others(status)])),
    ]
    lines = ["", "edge-serve", ""]
    for title, text in rows:
        lines += _wrapped(f"  {title:<9}", text)
    if not status["provisioned"]:
        lines += ["", *_wrapped("  ", "No settings yet: write edge-serve.toml to the boot partition, and restart.")]
    if status["faults"]:
        lines += ["", "  What is wrong:"]
    for fault in status["faults"]:
        lines += _wrapped("  * ", fault["text"])
        lines += _wrapped("    ", fault["help"]) if fault["help"] else []
    return [*lines, ""]


def pages(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of `/ui`."""
    scheme = "https" if status.get("tls") else "http"
    for host in [*status["addresses"][:1], f"{status['name']}.local"]:
        yield f"{scheme}://{f'[{host}]' if ':' in host else host}:8000/ui"


def _others(status: Mapping[str, Any]) -> Iterator[str]:
    for one in status["entries"]:
        if one["version"] != status["version"]:
            yield f"version {one['version']} is {one['state']}"
        elif one["state"] != "good":
            left = f", {one['left']} starts left" if one["state"] == "trying" else ""
            yield f"this one is {one['state']}{left}"


def _wrapped(first: str, text: str) -> list[str]:
    text = "".join(one if one.isprintable() else " " for one in text)
    return textwrap.wrap(text, _COLUMNS, initial_indent=first, subsequent_indent=" " * len(first)) or [first.rstrip()]


class Screens:
    """The terminals. One that does not exist, or has no driver, is skipped."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._files: list[int] = []
        for path in paths:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._files.append(descriptor)
                _silence(descriptor)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the content of all terminals. A terminal that takes nothing, such as a paused one, is skipped."""
        data = (_CLEAR + "\r\n".join(lines) + "\r\n").encode("ascii", "replace")
        for descriptor in self._files:
            with contextlib.suppress(OSError):
                os.write(descriptor, data)

    def close(self) -> None:
        """Close all terminals."""
        for descriptor in self._files:
            os.close(descriptor)


def _silence(descriptor: int) -> None:
    """Stop a terminal from showing typed characters, and from signals by keys."""
    with contextlib.suppress(termios.error):
        modes = termios.tcgetattr(descriptor)
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)


class Changes:
    """Waits until a fact may have changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._inotify < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._netlink.bind((0, _NETLINK_ADDRESSES))
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)
        self._poll.register(self._netlink, select.POLLIN)
        self._watch()

    def _watch(self) -> None:
        for name in _WATCHED:  # a directory that is watched already keeps its watch
            self._libc.inotify_add_watch(self._inotify, os.fsencode(self._root / name), _INOTIFY)

    def wait(self) -> None:
        """Return after a change, when none followed it for a moment."""
        timeout: int | None = None
        while self._poll.poll(timeout):
            _drain(self._inotify)
            _drain(self._netlink.fileno())
            timeout = _QUIET_MS
        self._watch()

    def close(self) -> None:
        """Stop watching."""
        os.close(self._inotify)
        self._netlink.close()


def _drain(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass


def run(screens: Screens, changes: Changes, update: Callable[[], Mapping[str, Any]]) -> None:
    """Draw the screens after each change of the status. Does not return."""
    before: list[str] = []
    while True:
        lines = screen(update())
        if lines != before:
            screens.draw(lines)
            before = lines
        changes.wait()


def main() -> int:
    """Show the state of this device, for edge-console.service."""
    (RUN / "faults").mkdir(parents=True, exist_ok=True)
    changes = Changes(Path("/"))  # before the first reading, so that no change is missed
    run(Screens(SCREENS), changes, update_status)
    return 0
