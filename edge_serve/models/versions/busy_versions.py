"""Lists the versions that have requests to answer, as text for a shutdown that waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge_serve.models.repository.names import shown
from edge_serve.models.versions.served import Served

#: versions that a text names; others are counted
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class BusyVersion:
    """A version with open requests.

    Attributes:
        requests: the number of open requests.
        seconds: age of its oldest batch; 0 = none runs.
    """

    name: str
    version: str
    requests: int
    seconds: float

    def __str__(self) -> str:
        """`det version 1 (1 request, its batch has been running for 12 s)`"""
        requests = "1 request" if self.requests == 1 else f"{self.requests} requests"
        running = (
            f", its {'oldest ' if self.requests > 1 else ''}batch has been running for {self.seconds:.0f} s"
            if self.seconds >= 1
            else ""
        )
        return f"{shown(self.name)} version {self.version} ({requests}{running})"


def busy_versions(versions: Iterable[Served]) -> list[BusyVersion]:
    """Return the versions with open requests, the oldest batch first."""
    found = [
        BusyVersion(one.name, one.version, requests, one.runner.oldest_batch_seconds() or 0.0)
        for one in versions
        if (requests := max(one.runner.in_flight(), one.references))
    ]
    return sorted(found, key=lambda one: (-one.seconds, one.name, one.version))


def listed(busy: list[BusyVersion]) -> str:
    """Return the versions as one text."""
    more = [f"{len(busy) - _MOST_NAMES} more model versions"] if len(busy) > _MOST_NAMES else []
    return ", ".join([*map(str, busy[:_MOST_NAMES]), *more])
