"""Versions that were replaced or unloaded and still drain, and the sum of the counters of those that are closed."""

from __future__ import annotations

from collections.abc import Iterable

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.versions.lineage import add_up
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.source import ModelSeries


class UnloadingVersions:
    """Keeps the server's counters from falling when a version is closed.

    Attributes:
        versions: the versions that drain.
    """

    def __init__(self) -> None:
        self.versions: set[Served] = set()
        self._closed = ModelStatistics()

    def add(self, served: Served) -> None:
        """Add a version that serves no longer."""
        self.versions.add(served)

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
