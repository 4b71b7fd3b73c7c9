"""Accepts connections from listening sockets, and pauses while the system has no descriptor for another one."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

from edge_serve.transport.door.listeners import Listener

log = logging.getLogger(__name__)

#: connections accepted in one turn of the event loop
_ACCEPTS_PER_TURN = 64

#: `accept` keeps failing while these conditions last: without a pause the loop would spin
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_ACCEPT_AGAIN_AFTER = 1.0

Accepted = Callable[[socket.socket, Listener, Any], None]


class Acceptor:
    """Accepts connections for one door.

    Args:
        accepted: called with each new non-blocking socket, its listener, and its address.
    """

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self._listeners: list[Listener] = []
        self._timers: dict[Listener, asyncio.TimerHandle] = {}

    def add(self, listener: Listener) -> None:
        """Accept connections from `listener`, on the running loop."""
        self._listeners.append(listener)
        self._accept_from(listener)

    def stop(self) -> None:
        """Accept the connections that are in the backlog already, then close the listeners."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._on_acceptable(listener)
        for timer in self._timers.values():
            timer.cancel()
        for listener in self._listeners:
            loop.remove_reader(listener.sock.fileno())
            listener.close()
        self._listeners.clear()

    def _accept_from(self, listener: Listener) -> None:
        self._timers.pop(listener, None)
        asyncio.get_running_loop().add_reader(listener.sock.fileno(), self._on_acceptable, listener)

    def _on_acceptable(self, listener: Listener) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(listener, error)
                return
            sock.setblocking(False)
            self._accepted(sock, listener, address)

    def _pause(self, listener: Listener, error: OSError) -> None:
        if error.errno in _EXHAUSTED:
            log.warning("cannot accept a connection, no descriptor is free (%s): trying again", error.strerror)
        else:
            log.warning("cannot accept a connection: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.sock.fileno())
        self._timers[listener] = loop.call_later(_ACCEPT_AGAIN_AFTER, self._accept_from, listener)
