"""Metrics that Python models make themselves (`pb_utils.MetricFamily`), gathered from all workers.

Updates are the plain mappings of the worker channel (backends/host.py, MetricUpdate). What a model sends is checked
here: a strange update is ignored, never shown. A series is removed with the last worker that had it.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from edge_serve.observe.metrics.source import CustomFamily, CustomSample
from edge_serve.records import slotted

log = logging.getLogger(__name__)

_Labels = tuple[tuple[str, str], ...]

#: series that one server keeps at most; further ones are ignored
MAX_SERIES = 10_000
#: share of them below which the log says that there is room again
_ROOM_AGAIN = 0.95
_KINDS = ("counter", "gauge", "histogram")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


@slotted
class _Series:
    value: float = 0.0
    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)
    owners: set[Hashable] = field(default_factory=set)


@slotted
class _Family:
    description: str
    kind: str
    series: dict[_Labels, _Series] = field(default_factory=dict)


class CustomMetrics:
    """All custom families of the server."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._count = 0
        #: updates of series that were refused since there was room
        self._refused = 0

    def apply(self, update: Mapping[str, Any], owner: Hashable = None) -> None:
        """Apply one change; what does not make sense is ignored.

        Args:
            owner: the worker that sends it.
        """
        try:
            name = str(update["name"])
            family = self._families.get(name) or _Family(str(update["description"]), str(update["kind"]))
            labels = tuple(sorted((str(key), str(value)) for key, value in update["labels"].items()))
            operation, value = str(update["operation"]), float(update["value"])
            bounds = tuple(bound for bound in map(float, update.get("bounds") or ()) if bound != math.inf)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return
        if operation == "remove":
            self._release(name, labels, owner)
        elif _readable(family.kind, labels, bounds):
            series = self._series(name, family, labels, bounds)
            if series is not None:
                series.owners.add(owner)
                match operation:
                    case "increment":
                        series.value += value
                    case "set":
                        series.value = value
                    case "observe" if series.counts:
                        series.counts[bisect_left(series.bounds, value)] += 1
                        series.value += value

    def gone(self, owner: Hashable) -> None:
        """Remove what this worker alone had: its models are unloaded."""
        for name, family in list(self._families.items()):
            for labels, series in list(family.series.items()):
                if owner in series.owners:
                    self._release(name, labels, owner)

    def _release(self, name: str, labels: _Labels, owner: Hashable) -> None:
        family = self._families.get(name)
        series = family.series.get(labels) if family is not None else None
        if family is None or series is None:
            return
        series.owners.discard(owner)
        if series.owners:
            return
        del family.series[labels]
        self._count -= 1
        if not family.series:
            del self._families[name]
        if self._refused and self._count < _ROOM_AGAIN * MAX_SERIES:
            log.warning("custom metrics have room again; %d updates of new series were ignored", self._refused)
            self._refused = 0

    def _series(self, name: str, family: _Family, labels: _Labels, bounds: tuple[float, ...]) -> _Series | None:
        """Return the series, a new one if there is none; None when there are too many."""
        series = family.series.get(labels)
        if series is None and self._count >= MAX_SERIES:
            if not self._refused:
                text = "custom metrics: %d series are the most; new ones are ignored, first of '%s': use fewer labels"
                log.warning(text, MAX_SERIES, name)
            self._refused += 1
        elif series is None:
            counts = [0] * (len(bounds) + 1) if family.kind == "histogram" else []
            series = family.series[labels] = _Series(bounds=bounds, counts=counts)
            self._families[name] = family
            self._count += 1
        return series

    def families(self) -> list[CustomFamily]:
        """Return the families that the page shows."""
        found = []
        for name, family in self._families.items():
            series = family.series.items()
            samples = [CustomSample(dict(labels), one.value, one.bounds, tuple(one.counts)) for labels, one in series]
            found.append(CustomFamily(name, family.description, family.kind, samples))
        return found


def _readable(kind: str, labels: _Labels, bounds: Sequence[float]) -> bool:
    """Return whether Prometheus reads such a series: one bad line makes it drop the whole page."""
    reserved = "le" if kind == "histogram" else ""
    return (
        kind in _KINDS
        and all(_LABEL.fullmatch(name) and name != reserved for name, _ in labels)
        and all(low < high for low, high in pairwise((-math.inf, *bounds, math.inf)))
    )
