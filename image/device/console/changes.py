"""Waits for changes of the device's facts: of addresses (netlink), and of files (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
from pathlib import Path

#: directories whose changes may change a fact; those that do not exist yet are watched by their parents
_WATCHED = (
    "run/edge-device/faults", "boot/EFI/Linux", "var/lib/edge-device", "var/lib/edge-system", "var/lib/edge-ota",
    "var/lib/edge-ota/identity", "run/systemd/timesync",
)  # fmt: skip
_NETLINK_ADDRESSES = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR (rtnetlink(7))
_INOTIFY = 0x40 | 0x80 | 0x100 | 0x200 | 0x8  # moved from, moved to, create, delete, close after writing (inotify(7))
#: changes come in groups: a screen is drawn when none came for so long
_QUIET_MS = 300


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
