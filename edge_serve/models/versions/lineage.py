"""Counters over all loads of a version: metrics continue when a version is replaced by another load of it, as in
Triton.

Each load starts with new statistics. A replaced load still counts while it drains, so its statistics are read until it
is closed, and then added to a sum.
"""

from __future__ import annotations

from edge_serve.messages.statistics import FirstResponse, Histogram, ModelStatistics

_DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
)  # fmt: skip
_HISTOGRAMS = ("request_seconds", "queue_seconds", "compute_seconds")


class Lineage:
    """The counters of the earlier loads of one version. Each load passes them on to its successor."""

    def __init__(self) -> None:
        self._sum: ModelStatistics | None = None
        self._draining: list[ModelStatistics] = []

    def add(self, statistics: ModelStatistics) -> None:
        """Add a load that was replaced and may still drain."""
        self._draining.append(statistics)

    def close(self, statistics: ModelStatistics) -> None:
        """Add the counters of a closed load to the sum. No effect on a load that was not replaced."""
        if any(one is statistics for one in self._draining):
            self._draining = [one for one in self._draining if one is not statistics]
            self._sum = add_up([self._sum or ModelStatistics(), statistics])

    def total(self, now: ModelStatistics) -> ModelStatistics:
        """Return the counters of the present load (`now`) and its predecessors together. Quantiles are of the present
        one."""
        if self._sum is None and not self._draining:
            return now
        before = [] if self._sum is None else [self._sum]
        return add_up([*before, *self._draining, now])


def add_up(parts: list[ModelStatistics]) -> ModelStatistics:
    """Sum the counters that metrics show, without `responses` and `batches`. Quantiles are those of the last part."""
    last = parts[-1]
    total = ModelStatistics(
        recent=last.recent, recent_hits=last.recent_hits, recent_misses=last.recent_misses,
        first_response=None if last.first_response is None else FirstResponse(last.first_response.bounds),
    )  # fmt: skip
    for part in parts:
        total.inference_count += part.inference_count
        total.execution_count += part.execution_count
        total.pending += part.pending
        total.client_errors += part.client_errors
        total.model_errors += part.model_errors
        for name in _DURATIONS:
            duration, added = getattr(total, name), getattr(part, name)
            duration.count += added.count
            duration.ns += added.ns
        for reason, count in part.failures.items():
            total.failures[reason] = total.failures.get(reason, 0) + count
        for name in _HISTOGRAMS:
            histogram, added = getattr(total, name), getattr(part, name)
            _sum_counts(histogram, added)
            histogram.sum_ns += added.sum_ns
        first, added = total.first_response, part.first_response
        if first is not None and added is not None and first.bounds == added.bounds:  # else other buckets, or none
            _sum_counts(first, added)
            first.sum_ms += added.sum_ms
    return total


def _sum_counts(total: Histogram | FirstResponse, part: Histogram | FirstResponse) -> None:
    total.counts = [a + b for a, b in zip(total.counts, part.counts, strict=True)]
