"""Memory that counts how often it was given back: `messages.infer.Lease` for tests."""

from __future__ import annotations


class Slot:
    """`length` bytes, with slack behind them."""

    offset = 0

    def __init__(self, length: int = 0) -> None:
        self.memory = bytearray(length + 64)
        self.view = memoryview(self.memory)
        self.released = 0

    @property
    def arena(self) -> object:
        """Its own."""
        return self.memory

    def release(self) -> None:
        """See Lease."""
        self.released += 1
