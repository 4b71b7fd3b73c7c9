"""Closes connections without failed requests when another process takes over the listening sockets.

Each answer from then on says `Connection: close`. The client of an idle connection may be sending its next request at
this moment, so an idle connection stays open for a grace period, and requests that arrive meanwhile are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

#: seconds for which an idle connection may still bring a request; and one that has not brought any yet
GRACE, FRESH_GRACE = 1.0, 3.0
#: seconds between two rounds over the open connections
_ROUND_SECONDS = 0.05


class Handover(Protocol):
    """A connection, as a handover sees it."""

    def retire(self, waited: float) -> None:
        """Answer the requests that have begun, then close; without any, close after the grace period.

        Args:
            waited: seconds since the handover began.
        """


async def retire(connections: Callable[[], Collection[Handover]], opening: Callable[[], int], timeout: float) -> None:
    """Retire all connections, in at most `timeout` seconds; the caller closes those that are left.

    Args:
        opening: returns the number of TLS handshakes, which become connections.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (waited := loop.time() - began) < timeout and (connections() or opening()):
        for connection in list(connections()):
            connection.retire(waited)
        await asyncio.sleep(_ROUND_SECONDS)
