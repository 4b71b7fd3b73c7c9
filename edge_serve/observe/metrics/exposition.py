"""Prometheus's text format 0.0.4, and the samples of histograms and summaries.

Written by hand, because `prometheus_client` would add `_total` to Triton's counter names.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from edge_serve.messages.statistics import Recent

CONTENT_TYPE = "text/plain; charset=utf-8"
#: how long a request counts towards the quantiles of a summary: prometheus-cpp's default
SUMMARY_WINDOW_NS = 60_000_000_000


#: suffixes of the samples of a family, by its kind
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


class Sample(NamedTuple):
    """One line of a family: `labels` as `label_text` writes them; `suffix` is `_sum`, `_count` or `_bucket`."""

    labels: str
    value: float
    suffix: str = ""


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as text, such as `a="1",b="2"`, in alphabetical order."""
    return ",".join(f'{name}="{_escape_value(labels[name])}"' for name in sorted(labels))


def with_label(labels: str, name: str, value: str) -> str:
    """Return `labels` with one more at the end, where Triton writes `le` and `quantile`."""
    pair = f'{name}="{value}"'
    return f"{labels},{pair}" if labels else pair


def family_lines(name: str, kind: str, description: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a family, the first after its HELP and TYPE lines; none if it has no sample."""
    head = f"# HELP {name} {_escape_help(description)}\n# TYPE {name} {kind}\n"
    for labels, value, suffix in samples:
        shown = f"{{{labels}}}" if labels else ""
        yield f"{head}{name}{suffix}{shown} {number(value)}\n"
        head = ""


def names_of(name: str, kind: str) -> set[str]:
    """Return the names that a family takes: its own, and those of its samples."""
    return {name, *(name + suffix for suffix in _SUFFIXES.get(kind, ()))}


def number(value: float) -> str:
    """Return a sample value as text: whole numbers without a point, `NaN`, `+Inf` and `-Inf` as Prometheus spells
    them."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _escape_value(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def histogram_samples(labels: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[Sample]:
    """Yield the samples of a histogram.

    Args:
        counts: per bucket, not cumulative, +Inf last; total: the sum of the observed values.
    """
    comma, count = "," if labels else "", 0
    for bound, count in zip(_le(tuple(bounds)), accumulate(counts), strict=True):
        yield Sample(f"{labels}{comma}{bound}", count, "_bucket")
    yield Sample(labels, total, "_sum")
    yield Sample(labels, count, "_count")


@lru_cache(maxsize=64)
def _le(bounds: tuple[float, ...]) -> list[str]:
    """Return the label of each bucket. The result is cached, because most lines of a page are buckets of the same few
    histograms."""
    return [with_label("", "le", number(bound)) for bound in (*bounds, math.inf)]


def summary_samples(
    labels: str, quantiles: Sequence[float], values: Sequence[float], count: int, total: float
) -> Iterator[Sample]:
    """Yield a summary: quantiles of the recent sorted `values` (NaN without any), and the count and sum of all time."""
    for quantile in quantiles:
        yield Sample(with_label(labels, "quantile", number(quantile)), quantile_of(values, quantile))
    yield Sample(labels, total, "_sum")
    yield Sample(labels, count, "_count")


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """Return the smallest value that at least the share `quantile` of the sorted `values` does not exceed."""
    if not values:
        return math.nan
    return values[min(len(values) - 1, max(0, math.ceil(quantile * len(values)) - 1))]


def recent_microseconds(recent: Iterable[Recent], index: int, now_ns: int) -> list[float]:
    """Return field `index` of the requests that ended within the window, sorted, in microseconds."""
    since = now_ns - SUMMARY_WINDOW_NS
    return sorted(request[index] // 1000 for request in recent if request.end_ns >= since)
