"""The rate limiter over all models: which of the instances that have work may run now.

Rules and texts: triton-inference-server/core src/rate_limiter.cc, docs/user_guide/rate_limiter.md of the server. An
instance runs only while it holds the resources that its group asks for. Among those that wait, the one with the lowest
weighted number of executions (`priority` times executions, with the one that it waits for) goes first. Of two with the
same number, the one with the lower weight goes first.

Unlike Triton, a waiting instance blocks only those that need one of the same resources, not every model. An instance
that asks after a pause starts at the present count of those that share its resources, so that a model loaded later does
not keep the others waiting until it has caught up. And all instances that fit are started, not one for each event.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from operator import attrgetter
from typing import NamedTuple

from edge_serve.config.settings.server_values import RateLimitResource
from edge_serve.errors import InvalidArgument
from edge_serve.records import entity

_place = attrgetter("place")


class Resource(NamedTuple):
    """A resource with a number of pieces; device None = one stock for the whole server (`global`)."""

    name: str
    device: int | None


@entity
class Claimant:
    """An instance of a model. It is idle, waits, or runs.

    Attributes:
        needs: the resources that it holds while it runs.
        weight: `priority` of its group; one of weight 2 gets half the executions of one of weight 1.
        served: weighted executions so far, as of the last one that it asked for.
    """

    needs: Mapping[Resource, int] = field(default_factory=dict)
    weight: int = 1
    served: int = 0
    waiting: bool = False
    running: bool = False
    place: tuple[int, int, int] = (0, 0, 0)


class RateLimiter:
    """The stocks of resources, and the instances that hold and await them. After any event call `next` until it returns
    None.

    Args:
        explicit: the stocks; if there are any, resources that they do not name are not available. Otherwise the stock
            of each resource is the largest number that a claimant needs.
    """

    def __init__(self, explicit: Iterable[RateLimitResource] = ()) -> None:
        self._explicit: dict[Resource, int] = {}
        for given in explicit:
            resource = Resource(given.name, given.device)
            self._explicit[resource] = min(given.count, self._explicit.get(resource, given.count))
        self._claimants: list[Claimant] = []
        self._stock: dict[Resource, int] = {}
        self._used: dict[Resource, int] = {}
        #: resource -> weighted executions of its last holder: the present count of those that share it
        self._now: dict[Resource, int] = {}
        self._waiting: list[Claimant] = []
        self._number = 0

    def add(self, claimants: Collection[Claimant]) -> None:
        """Add instances, all or none of them.

        Raises:
            InvalidArgument: an instance could never run, or a resource is both global and of a device.
        """
        wanted = [*self._claimants, *claimants]
        stock = self._stock_for(wanted)
        self._claimants = wanted
        self._stock = stock

    def remove(self, claimants: Collection[Claimant]) -> None:
        """Remove instances in any state, and release their resources."""
        for claimant in claimants:
            self.release(claimant)
        self._claimants = [known for known in self._claimants if known not in claimants]
        self._stock = self._stock_for(self._claimants)

    def ask(self, claimant: Claimant, executions: int = 1) -> None:
        """Let an idle claimant wait for its resources, with work for so many executions."""
        present = max((self._now.get(resource, 0) for resource in claimant.needs), default=0)
        self._number += 1
        start = max(present, claimant.served)
        claimant.place = (start + claimant.weight, claimant.weight, self._number)
        claimant.served = start + executions * claimant.weight
        claimant.waiting = True
        insort(self._waiting, claimant, key=_place)

    def release(self, claimant: Claimant) -> None:
        """Release the resources of a claimant, which neither waits nor runs any more."""
        if claimant.waiting:
            self._waiting.remove(claimant)
            claimant.waiting = False
        if claimant.running:
            claimant.running = False
            for resource, count in claimant.needs.items():
                self._used[resource] -= count

    def next(self) -> Claimant | None:
        """Start the claimant that may run now, and return it. None: no claimant can run before the next event."""
        awaited: set[Resource] = set()
        for position, claimant in enumerate(self._waiting):
            if self._fits(claimant, awaited):
                del self._waiting[position]
                self._start(claimant)
                return claimant
            awaited.update(claimant.needs)
        return None

    def rank(self, claimant: Claimant) -> tuple[bool, int]:
        """Return the rank of an idle claimant: those that could run now come first, then by weighted executions."""
        awaited = {resource for waiting in self._waiting for resource in waiting.needs}
        return not self._fits(claimant, awaited), claimant.served

    def _fits(self, claimant: Claimant, awaited: Collection[Resource]) -> bool:
        used, stock = self._used, self._stock
        return all(
            resource not in awaited and used.get(resource, 0) + count <= stock[resource]
            for resource, count in claimant.needs.items()
        )

    def _start(self, claimant: Claimant) -> None:
        claimant.waiting = False
        claimant.running = True
        for resource, count in claimant.needs.items():
            self._used[resource] = self._used.get(resource, 0) + count
            self._now[resource] = max(claimant.place[0] - claimant.weight, self._now.get(resource, 0))

    def _stock_for(self, claimants: Iterable[Claimant]) -> dict[Resource, int]:
        stock: dict[Resource, int] = {}
        for claimant in claimants:
            for resource, count in claimant.needs.items():
                stock[resource] = max(count, stock.get(resource, 0))
        if self._explicit:
            stock = {resource: self._given(resource, least) for resource, least in stock.items()}
        everywhere = {resource.name for resource in stock if resource.device is None}
        for name in sorted(resource.name for resource in stock if resource.device is not None):
            if name in everywhere:
                raise InvalidArgument(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        return stock

    def _given(self, resource: Resource, least: int) -> int:
        """Return the count of a resource in the settings; a global one may be set for any device."""
        found = max(
            (
                count
                for given, count in self._explicit.items()
                if given.name == resource.name
                and (resource.device is None or given.device is None or given.device == resource.device)
            ),
            default=0,
        )
        if found < least:
            raise InvalidArgument(
                f'Resource count for "{resource.name}" is limited to {found} which will prevent scheduling of one or '
                f"more model instances, the minimum required count is {least}"
            )
        return found

    def _check(self) -> None:
        held: dict[Resource, int] = {}
        for claimant in self._claimants:
            assert not (claimant.waiting and claimant.running)
            assert claimant.waiting == (claimant in self._waiting)
            if claimant.running:
                for resource, count in claimant.needs.items():
                    held[resource] = held.get(resource, 0) + count
        assert held == {resource: count for resource, count in self._used.items() if count}
        assert self._waiting == sorted(self._waiting, key=_place)
