"""Leases of output slots: one slot shared by several responses, and several slots of one response."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    @classmethod
    def of(cls, lease: Lease) -> SharedLease:
        """Return `lease` as one that can be shared; itself if it is one."""
        return lease if isinstance(lease, cls) else cls(_Shared(lease, 1))

    def share(self) -> SharedLease:
        """Return a lease for one more holder. This one must not have been released."""
        assert self._shared is not None
        self._shared.holders += 1
        return SharedLease(self._shared)

    def release(self) -> None:
        """Release this share; see `Lease`."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.holders -= 1
            if not shared.holders:
                shared.lease.release()


def shares(lease: Lease | None, holders: int) -> list[Lease | None]:
    """Return a lease for each of `holders` requests whose outputs lie in one slot, or None for each."""
    if lease is None or holders == 1:
        return [lease] * holders
    shared = _Shared(lease, holders)
    return [SharedLease(shared) for _ in range(holders)]


class Leases:
    """Several leases, in different arenas, that are released together.

    Args:
        on_release: called once, before they are released.
    """

    __slots__ = ("_leases", "_on_release")

    #: no arena holds all of it
    offset = -1
    arena: object = None
    view = memoryview(b"")

    def __init__(self, leases: Sequence[Lease], on_release: Callable[[], None] | None = None) -> None:
        self._leases = leases
        self._on_release = on_release

    def release(self) -> None:
        """Release all of them."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()
        leases, self._leases = self._leases, ()
        for lease in leases:
            lease.release()
