"""Counters over all loads of a version: metrics continue when a version is replaced by another load of it, as in
Triton.

Each load starts with new statistics. A replaced load still counts while it drains, so its statistics are read until it
is closed, and then added to a sum.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from edge_serve.messages.statistics import Duration, FirstResponse, Histogram, ModelStatistics

#: of the present load alone: the answers of /stats and what quantiles are made from
_PRESENT = frozenset(("batches", "last_inference_ms", "recent", "recent_hits", "recent_misses", "responses"))


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
    """Sum the counters that metrics show: every field but those in `_PRESENT`. Quantiles are those of the last part."""
    last = parts[-1]
    total = ModelStatistics(
        recent=last.recent, recent_hits=last.recent_hits, recent_misses=last.recent_misses,
        first_response=None if last.first_response is None else FirstResponse(last.first_response.bounds),
    )  # fmt: skip
    for part in parts:
        for name in (one.name for one in fields(ModelStatistics) if one.name not in _PRESENT):
            setattr(total, name, _sum(getattr(total, name), getattr(part, name)))
    return total


def _sum(a: Any, b: Any) -> Any:
    match a:
        case int():
            return a + b
        case Duration():
            return Duration(a.count + b.count, a.ns + b.ns)
        case dict():
            return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
        case Histogram():
            return Histogram(_counts(a, b), a.sum_ns + b.sum_ns)
        case FirstResponse() if b is not None and a.bounds == b.bounds:
            return FirstResponse(a.bounds, _counts(a, b), a.sum_ms + b.sum_ms)
    return a  # first responses in other buckets, or none


def _counts(a: Histogram | FirstResponse, b: Histogram | FirstResponse) -> list[int]:
    return [one + other for one, other in zip(a.counts, b.counts, strict=True)]
