"""Samples of histograms and summaries out of what `messages.statistics` counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from edge_serve.messages.statistics import LATENCY_BUCKETS, FirstResponse, Histogram, Recent
from edge_serve.observe.metrics.exposition import Sample, number, with_label

#: how long a request counts towards the quantiles of a summary: prometheus-cpp's default
SUMMARY_WINDOW_NS = 60_000_000_000


def latency_samples(labels: str, histogram: Histogram) -> Iterator[Sample]:
    """One of our latency histograms, in seconds."""
    return bucket_samples(labels, LATENCY_BUCKETS, histogram.counts, histogram.sum_ns / 1e9)


def first_response_samples(labels: str, histogram: FirstResponse) -> Iterator[Sample]:
    """nv_inference_first_response_histogram_ms."""
    return bucket_samples(labels, histogram.bounds, histogram.counts, histogram.sum_ms)


def bucket_samples(labels: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[Sample]:
    """A histogram from counts per bucket (not cumulative, +Inf last) and the sum of what was observed."""
    yield from cumulative_samples(labels, bounds, list(accumulate(counts)), total)


def cumulative_samples(labels: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[Sample]:
    """A histogram from cumulative counts, the last of them for +Inf."""
    comma = "," if labels else ""
    for bound, count in zip(_le(tuple(bounds)), counts, strict=True):
        yield Sample(f"{labels}{comma}{bound}", count, "_bucket")
    yield Sample(labels, total, "_sum")
    yield Sample(labels, counts[-1], "_count")


@lru_cache(maxsize=64)
def _le(bounds: tuple[float, ...]) -> list[str]:
    """The label of each bucket; kept, because most lines of a page are buckets of the same few histograms."""
    return [with_label("", "le", number(bound)) for bound in (*bounds, math.inf)]


def summary_samples(
    labels: str, quantiles: Sequence[float], values: Sequence[float], count: int, total: float
) -> Iterator[Sample]:
    """A summary: quantiles of the recent sorted `values` (NaN without any), and the count and sum of all time."""
    for quantile in quantiles:
        yield Sample(with_label(labels, "quantile", number(quantile)), quantile_of(values, quantile))
    yield Sample(labels, total, "_sum")
    yield Sample(labels, count, "_count")


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """The smallest value that at least the share `quantile` of the sorted `values` does not exceed."""
    if not values:
        return math.nan
    return values[min(len(values) - 1, max(0, math.ceil(quantile * len(values)) - 1))]


def recent_microseconds(recent: Iterable[Recent], index: int, now_ns: int) -> list[float]:
    """Sorted microseconds of field `index` of the requests that ended within the window."""
    since = now_ns - SUMMARY_WINDOW_NS
    return sorted(request[index] // 1000 for request in recent if request.end_ns >= since)
