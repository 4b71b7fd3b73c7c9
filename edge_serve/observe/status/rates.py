"""Rates and latencies: the differences between two status documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from edge_serve.records import frozen

Document = Mapping[str, Any]
#: the namespace, name, and version of a model
Key = tuple[str, str, str]


@frozen
class Rates:
    """Of one model version, or of all together, over a while.

    Attributes:
        median, slowest: seconds in which half of the requests, and 99 of 100, were answered; None = of none.
    """

    requests: float = 0.0
    median: float | None = None
    slowest: float | None = None


@frozen
class Totals:
    """Counters at one moment."""

    requests: int = 0
    failures: int = 0
    counts: Sequence[int] = ()

    def since(self, before: Totals) -> Totals:
        """Return the growth of a counter. A counter that is lower than before began anew: its model was loaded
        again."""
        if before.requests > self.requests or before.failures > self.failures:
            return self
        counts = [after - then for after, then in zip_longest(self.counts, before.counts, fillvalue=0)]
        return Totals(self.requests - before.requests, self.failures - before.failures, counts)


def totals_by_model(document: Document) -> dict[Key, Totals]:
    """Return the counters of every version that serves."""
    return {key_of(row): _totals(row["totals"]) for row in document["models"] if "totals" in row}


def key_of(row: Mapping[str, Any]) -> Key:
    """Return what distinguishes a version from the others in a document."""
    return row.get("namespace", ""), row["name"], row["version"]


def _totals(of: Mapping[str, Any]) -> Totals:
    return Totals(of["requests"], sum(of["failures"].values()), of["duration_counts"])


def totals_of(document: Document) -> Totals:
    """Return the counters of the whole server since its start. They do not fall when a model is unloaded or
    replaced."""
    all_of_them = document.get("totals")
    if all_of_them is None:  # a server of an older version
        of_models = totals_by_model(document).values()
        counts = [sum(bucket) for bucket in zip_longest(*(one.counts for one in of_models), fillvalue=0)]
        return Totals(sum(one.requests for one in of_models), sum(one.failures for one in of_models), counts)
    return _totals(all_of_them)


def between(before: Document | None, after: Document) -> tuple[Rates, dict[Key, Rates]]:
    """Return the rates of all models together, and of each. All are zero if `before` is missing or of another
    process."""
    now = totals_by_model(after)
    seconds = (after["clock_ns"] - before["clock_ns"]) / 1e9 if before is not None else 0.0
    if before is None or seconds <= 0 or before["server"]["pid"] != after["server"]["pid"]:
        return Rates(), dict.fromkeys(now, Rates())
    then = totals_by_model(before)
    added = {key: totals.since(then.get(key, Totals())) for key, totals in now.items()}
    bounds = after["duration_bounds_seconds"]
    each = {key: _rates(totals, seconds, bounds) for key, totals in added.items()}
    return _rates(totals_of(after).since(totals_of(before)), seconds, bounds), each


def _rates(added: Totals, seconds: float, bounds: Sequence[float]) -> Rates:
    return Rates(
        added.requests / seconds,
        quantile(0.5, added.counts, bounds),
        quantile(0.99, added.counts, bounds),
    )


def quantile(q: float, counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Return the value below which the part `q` lies, interpolated within its bucket; None if all counts are 0.

    Args:
        counts: per bucket; one more than `bounds`, the upper ones. What lies beyond the last one counts as that.
    """
    left = q * sum(counts)
    if not left:
        return None
    for i, count in enumerate(counts):
        if left <= count:
            low = bounds[i - 1] if i else 0.0
            high = bounds[i] if i < len(bounds) else low
            return float(low + (high - low) * left / count)
        left -= count
    return float(bounds[-1])
