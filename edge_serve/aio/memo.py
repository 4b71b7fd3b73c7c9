"""A bounded memo: a dictionary that evicts its oldest entry when it is full."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Results by what they were worked out from, at most `limit` of them.

    Look up with `get`, which is the dictionary's own and costs nothing more; store with `add`. For one thread: two that
    evict at once would delete the same entry.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def add(self, key: K, value: V) -> V:
        """Store a result, evict the oldest if there are too many, and return it."""
        self[key] = value
        if len(self) > self.limit:
            del self[next(iter(self))]
        return value
