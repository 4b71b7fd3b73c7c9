"""Streams of a decoupled model that are paused because their clients read too slowly."""

from __future__ import annotations

import threading


class PausedStreams:
    """The paused streams of one instance, by `cancel_key`. The control thread changes them, and senders wait.

    Attributes:
        paused: empty unless a client reads slowly, so that asking costs the others one look at it.
    """

    __slots__ = ("_closing", "paused")

    def __init__(self) -> None:
        self.paused: dict[int, threading.Event] = {}
        self._closing = False

    def pause(self, key: int) -> None:
        """Let the stream's senders wait from their next response on."""
        if key not in self.paused and not self._closing:
            self.paused[key] = threading.Event()

    def resume(self, key: int) -> None:
        """Resume a stream, whose client reads again or has disconnected."""
        event = self.paused.pop(key, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Wake all senders because the model is being closed. Their responses are never sent."""
        self._closing = True
        for event in self.paused.values():
            event.set()

    def wait(self, key: int, final: bool) -> bool:
        """Wait until a response may be sent. The final one does not wait, because none follows that could pile up.

        Returns:
            False if no response of the stream may be sent any more: a stream with a gap must not end as if complete.
        """
        while (event := self.paused.get(key)) is not None:  # perhaps paused again before this thread woke up
            if self._closing:
                return False
            if final:
                return True
            event.wait()
        return True
