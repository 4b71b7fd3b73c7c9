"""One output slot shared by several responses; it is released when all of them are."""

from __future__ import annotations

from collections.abc import Sequence

from edge_serve.messages.infer import Lease


class _Shared:
    """A slot, and the number of holders that have not released it."""

    __slots__ = ("holders", "lease")

    def __init__(self, lease: Lease, holders: int) -> None:
        self.lease = lease
        self.holders = holders


class SharedLease:
    """The lease of one holder. The slot is released when all holders have released theirs."""

    __slots__ = ("_shared", "arena", "offset", "view")

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared
        self.view = shared.lease.view
        self.offset = shared.lease.offset
        self.arena = shared.lease.arena

    def release(self) -> None:
        """Release this share; see `Lease`."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.holders -= 1
            if not shared.holders:
                shared.lease.release()


def shares(lease: Lease | None, holders: int) -> Sequence[Lease | None]:
    """Return a lease for each of `holders` requests whose outputs lie in one slot, or None for each."""
    if lease is None or holders == 1:
        return [lease] * holders
    shared = _Shared(lease, holders)
    return [SharedLease(shared) for _ in range(holders)]
