"""Metrics that Python models make themselves (`pb_utils.MetricFamily`), gathered from all workers.

Updates are the plain mappings of the worker channel (backends/host.py, MetricUpdate). What a model sends is checked
here: a strange update is ignored, never shown.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from edge_serve.metrics.source import CustomFamily, CustomSample

_Labels = tuple[tuple[str, str], ...]

#: series that one server keeps at most; further ones are ignored
MAX_SERIES = 10_000
_KINDS = ("counter", "gauge", "histogram")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(slots=True)
class _Series:
    value: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.value += value

    def sample(self, labels: _Labels) -> CustomSample:
        total, cumulative = 0, []
        for count in self.counts:
            total += count
            cumulative.append(total)
        return CustomSample(dict(labels), self.value, self.bounds, tuple(cumulative))


@dataclass(slots=True)
class _Family:
    description: str
    kind: str
    series: dict[_Labels, _Series] = field(default_factory=dict)


class CustomMetrics:
    """All custom families of the server."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._count = 0

    def apply(self, update: Mapping[str, Any]) -> None:
        """One change; what does not make sense is ignored."""
        try:
            name = str(update["name"])
            family = self._families.get(name) or _Family(str(update["description"]), str(update["kind"]))
            labels = tuple(sorted((str(key), str(value)) for key, value in update["labels"].items()))
            operation, value = str(update["operation"]), float(update["value"])
            bounds = tuple(bound for bound in map(float, update.get("bounds") or ()) if bound != math.inf)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return
        if operation == "remove":
            self._remove(name, labels)
        elif _readable(family.kind, labels, bounds):
            self._change(name, family, labels, operation, value, bounds)

    def _remove(self, name: str, labels: _Labels) -> None:
        family = self._families.get(name)
        if family is not None and family.series.pop(labels, None) is not None:
            self._count -= 1
            if not family.series:
                del self._families[name]

    def _change(
        self, name: str, family: _Family, labels: _Labels, operation: str, value: float, bounds: tuple[float, ...]
    ) -> None:
        series = family.series.get(labels)
        if series is None:
            if self._count >= MAX_SERIES:
                return
            counts = [0] * (len(bounds) + 1) if family.kind == "histogram" else []
            series = family.series[labels] = _Series(bounds=bounds, counts=counts)
            self._families[name] = family
            self._count += 1
        match operation:
            case "increment":
                series.value += value
            case "set":
                series.value = value
            case "observe" if series.counts:
                series.observe(value)

    def families(self) -> list[CustomFamily]:
        """What the page shows."""
        return [
            CustomFamily(name, family.description, family.kind, [s.sample(key) for key, s in family.series.items()])
            for name, family in self._families.items()
        ]


def _readable(kind: str, labels: _Labels, bounds: Sequence[float]) -> bool:
    """Whether Prometheus reads such a series: one bad line makes it drop the whole page."""
    reserved = "le" if kind == "histogram" else ""
    return (
        kind in _KINDS
        and all(_LABEL.fullmatch(name) and name != reserved for name, _ in labels)
        and all(low < high for low, high in pairwise((-math.inf, *bounds, math.inf)))
    )
