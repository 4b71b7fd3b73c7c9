"""Memory that counts how often it was given back: `messages.infer.Lease` for tests."""

from __future__ import annotations

from collections.abc import Callable


class Slot:
    """`length` bytes, with slack behind them."""

    is_ready = True
    error = None

    def __init__(self, length: int = 0) -> None:
        self.memory = bytearray(length + 64)
        self.view = memoryview(self.memory)
        self.offset = self.released = 0

    @property
    def arena(self) -> object:
        """Return the arena of the lease."""
        return self.memory

    def skip(self, count: int) -> None:
        """See Room."""
        self.view, self.offset = self.view[count:], self.offset + count

    def when_ready(self, done: Callable[[], None]) -> None:
        """See Room."""
        done()

    def release(self) -> None:
        """See Lease."""
        self.released += 1
