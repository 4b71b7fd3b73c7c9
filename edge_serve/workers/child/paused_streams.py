"""Streams of a decoupled model that stand still because their clients read too slowly.

Worker's side: the standard library only.
"""

from __future__ import annotations

import threading


class PausedStreams:
    """The streams of one instance that are held, by `cancel_key`. The control thread changes it, senders wait.

    Attributes:
        held: empty unless a client reads slowly, so that asking costs the others one look at it.
    """

    __slots__ = ("_closing", "held")

    def __init__(self) -> None:
        self.held: dict[int, threading.Event] = {}
        self._closing = False

    def hold(self, key: int) -> None:
        """Let the stream's senders wait from their next response on."""
        if key not in self.held and not self._closing:
            self.held[key] = threading.Event()

    def go_on(self, key: int) -> None:
        """The client has read on, or has gone."""
        event = self.held.pop(key, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """The model is being closed: nobody waits any more, and what is held is never sent."""
        self._closing = True
        for event in self.held.values():
            event.set()

    def wait(self, key: int, final: bool) -> bool:
        """Return when a response may be sent. The last one need not wait: nothing comes after it that could pile up.
        False when nothing of the stream may be sent any more, lest a stream with a gap come to a good end."""
        while (event := self.held.get(key)) is not None:  # perhaps held again before this thread woke up
            if self._closing:
                return False
            if final:
                return True
            event.wait()
        return True
