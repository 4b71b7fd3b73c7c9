"""One place for the answers of several requests."""

from __future__ import annotations

from edge_serve.messages.infer import Lease


class SharedLease:
    """One output slot that holds the answers of several requests: given back when the last of them is sent."""

    __slots__ = ("_lease", "_shares")

    def __init__(self, lease: Lease, shares: int) -> None:
        self._lease = lease
        self._shares = shares

    @property
    def view(self) -> memoryview:
        return self._lease.view

    @property
    def offset(self) -> int:
        return self._lease.offset

    @property
    def arena(self) -> object:
        return self._lease.arena

    def release(self) -> None:
        self._shares -= 1
        if self._shares == 0:
            self._lease.release()
