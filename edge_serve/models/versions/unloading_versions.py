"""The versions that were replaced or unloaded and still have something to answer, and the counters of those before."""

from __future__ import annotations

from collections.abc import Iterable

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.versions.lineage import add_up
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.source import ModelSeries


class Departing:
    """Keeps the counters of the whole server from falling when a version is closed.

    Attributes:
        versions: those that answer what they accepted, and nothing new.
    """

    def __init__(self) -> None:
        self.versions: set[Served] = set()
        self._closed = ModelStatistics()

    def add(self, served: Served) -> None:
        """A version serves no longer."""
        self.versions.add(served)

    def close(self, served: Served) -> None:
        """It is closed. Its counters stay, unless a stand-in still has them."""
        self.versions.discard(served)
        if not served.has_stand_in:
            self._closed = add_up([self._closed, served.statistics])

    def add_to(self, series: ModelSeries, served: Served) -> ModelSeries:
        """Add to the series of a version that serves what replaced loads of the same version still have to answer."""
        for one in self.versions:
            if (one.identity, one.version) == (served.identity, served.version):
                series.in_flight += one.runner.in_flight()
                oldest = one.runner.oldest_batch_seconds() or 0.0
                series.oldest_batch_seconds = max(series.oldest_batch_seconds, oldest)
        return series

    def counters(self, serving: Iterable[Served]) -> list[ModelStatistics]:
        """Return those of all versions since the start: one sum of the closed ones, and each of the others."""
        others = {id(one.statistics): one.statistics for one in (*serving, *self.versions)}
        return [self._closed, *others.values()]
