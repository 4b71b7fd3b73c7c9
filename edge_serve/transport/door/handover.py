"""How a door says goodbye when another process takes its sockets over: nobody who asks in time goes unanswered.

Whoever is being answered is told `Connection: close` with it. A client that keeps an idle connection may be sending its
next request at this very moment, so such a connection stays open for a while, and what comes on it is still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

#: how long an idle connection may still bring a request; and one that has not brought any yet; seconds
GRACE, FRESH_GRACE = 1.0, 3.0
#: between looks at those that are left
_LOOK_SECONDS = 0.05


class Handover(Protocol):
    """A connection."""

    def retire(self, waited: float) -> None:
        """Answer what has begun and end with that; when nothing has, end after a grace. `waited` seconds have gone."""


async def retire(connections: Callable[[], Collection[Handover]], opening: Callable[[], int], timeout: float) -> None:
    """Let all go, at most `timeout` seconds; those that are left then are somebody else's matter.

    Args:
        opening: how many are not there yet (TLS handshakes), and will be.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (waited := loop.time() - began) < timeout and (connections() or opening()):
        for connection in list(connections()):
            connection.retire(waited)
        await asyncio.sleep(_LOOK_SECONDS)
