"""Versions that drain, the counters of those that are closed, and the versions that are busy, as text."""

from __future__ import annotations

from collections.abc import Iterable

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.repository.names import shown
from edge_serve.models.versions.lineage import add_up
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.source import ModelSeries
from edge_serve.records import frozen


class UnloadingVersions:
    """Keeps the server's counters from falling when a version is closed.

    Attributes:
        versions: the versions that drain.
    """

    def __init__(self) -> None:
        self.versions: set[Served] = set()
        self._closed = ModelStatistics()

    def close(self, served: Served) -> None:
        """Remove a closed version, and keep its counters, unless a stand-in still has them."""
        self.versions.discard(served)
        if not served.has_stand_in:
            self._closed = add_up([self._closed, served.statistics])

    def add_to(self, series: ModelSeries, served: Served) -> ModelSeries:
        """Add requests in flight of replaced loads to the series of the version that serves."""
        for one in self.versions:
            if (one.identity, one.version) == (served.identity, served.version):
                series.in_flight += one.runner.in_flight()
                oldest = one.runner.oldest_batch_seconds() or 0.0
                series.oldest_batch_seconds = max(series.oldest_batch_seconds, oldest)
        return series

    def counters(self, serving: Iterable[Served]) -> list[ModelStatistics]:
        """Return the counters of all versions since the start: one sum of the closed ones, and each of the others."""
        others = {id(one.statistics): one.statistics for one in (*serving, *self.versions)}
        return [self._closed, *others.values()]


#: versions that a text names; others are counted
_MOST_NAMES = 4


@frozen
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
        """Return text such as `det version 1 (1 request, its batch has been running for 12 s)`."""
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


def join_names(busy: list[BusyVersion]) -> str:
    """Return the versions as one text."""
    more = [f"{len(busy) - _MOST_NAMES} more model versions"] if len(busy) > _MOST_NAMES else []
    return ", ".join([*map(str, busy[:_MOST_NAMES]), *more])
