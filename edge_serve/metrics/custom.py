"""Metrics that Python models make themselves (`pb_utils.MetricFamily`), gathered from all workers.

Updates are the plain mappings of the worker channel (backends/host.py, MetricUpdate). What a model sends is checked
here: a strange update is ignored, never shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_serve.metrics.source import CustomFamily, CustomSample

_Labels = tuple[tuple[str, str], ...]

#: series that one server keeps at most; further ones are ignored
MAX_SERIES = 10_000


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
            family = self._families.setdefault(
                str(update["name"]), _Family(str(update["description"]), str(update["kind"]))
            )
            labels = tuple(sorted((str(key), str(value)) for key, value in update["labels"].items()))
            self._change(family, labels, str(update["operation"]), float(update["value"]), update.get("bounds") or ())
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _change(self, family: _Family, labels: _Labels, operation: str, value: float, bounds: Any) -> None:
        if operation == "remove":
            self._count -= family.series.pop(labels, None) is not None
            return
        series = family.series.get(labels)
        if series is None:
            if self._count >= MAX_SERIES:
                return
            edges = tuple(float(bound) for bound in bounds)
            series = family.series[labels] = _Series(bounds=edges, counts=[0] * (len(edges) + 1) if edges else [])
            self._count += 1
        match operation:
            case "increment":
                series.value += value
            case "set":
                series.value = value
            case "observe" if series.counts:
                series.observe(value)

    def families(self) -> list[CustomFamily]:
        """What the page shows; a family without series is left out."""
        return [
            CustomFamily(name, family.description, family.kind, [s.sample(key) for key, s in family.series.items()])
            for name, family in self._families.items()
            if family.series
        ]
