"""`MetricFamily` and `Metric`: a model's own metrics. Values live here; the host is notified of every change.

Contract and texts: triton-inference-server/python_backend src/metric.cc and src/metric_family.cc, and core's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from edge_serve.backends import host
from edge_serve.backends.python.api.errors import MODULE, NativeEnum, TritonModelException, as_text

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class MetricKind(NativeEnum):
    """Kinds of metric families."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


_Labels = tuple[tuple[str, str], ...]


class _Series:
    """One line of a family; all `Metric` objects with the same labels share it.

    Attributes:
        holders: how many `MetricFamily` objects have made it.
    """

    __slots__ = ("bounds", "holders", "value")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.value = 0.0
        self.holders = 0


class _Family:
    """The state that all `MetricFamily` objects of one name share.

    Attributes:
        holders: how many such objects there are.
    """

    __slots__ = ("description", "holders", "kind", "name", "series")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.holders = 0
        self.series: dict[_Labels, _Series] = {}

    def send(self, labels: _Labels, operation: str, value: float = 0.0) -> None:
        """Notify the host of a change of a series."""
        kind, bounds = self.kind.name.lower(), self.series[labels].bounds
        host.metric(host.MetricUpdate(self.name, self.description, kind, dict(labels), operation, value, bounds))


_families: dict[str, _Family] = {}


class Metric:
    """One series; made by `MetricFamily.Metric`. It is of no use after the `MetricFamily` that made it.

    The series stays when the model discards this object, because the family owns it.
    """

    __slots__ = ("__weakref__", "_family", "_labels", "_made", "_series")

    def __init__(self, maker: MetricFamily, labels: _Labels, series: _Series) -> None:
        self._family, self._made = maker._family, maker._made
        self._labels, self._series = labels, series

    def increment(self, value: float) -> None:
        """Add to a counter (not less than 0) or a gauge.

        Raises:
            TritonModelException: a negative number for a counter; a histogram.
        """
        value = _number("increment", value)
        with host.lock:
            self._check("increment", MetricKind.COUNTER, MetricKind.GAUGE)
            if self._family.kind is MetricKind.COUNTER and value < 0:
                raise TritonModelException(
                    "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                    "monotonically by non-negative values."
                )
            self._series.value += value
            self._family.send(self._labels, "increment", value)

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
            TritonModelException: not a gauge.
        """
        value = _number("set", value)
        with host.lock:
            self._check("set", MetricKind.GAUGE)
            self._series.value = value
            self._family.send(self._labels, "set", value)

    def observe(self, value: float) -> None:
        """Count a value into a histogram.

        Raises:
            TritonModelException: not a histogram.
        """
        value = _number("observe", value)
        with host.lock:
            self._check("observe", MetricKind.HISTOGRAM)
            self._family.send(self._labels, "observe", value)

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
            TritonModelException: a histogram.
        """
        with host.lock:
            self._check("value", MetricKind.COUNTER, MetricKind.GAUGE)
            return self._series.value

    def _check(self, operation: str, *kinds: MetricKind) -> None:
        """Refuse an operation that this kind of metric lacks, or after the end of the family."""
        failed = f"Failed to {'get' if operation == 'value' else operation} metric value:"
        if self._labels not in self._made:
            raise TritonModelException(
                f"{failed} Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
                "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        if self._family.kind not in kinds:
            raise TritonModelException(
                f"{failed} TRITONSERVER_METRIC_KIND_{self._family.kind.name} does not support {operation.capitalize()}"
            )


def _is_number(value: object) -> bool:
    return not isinstance(value, (str, bytes)) and hasattr(value, "__float__")


def _number(function: str, value: float) -> float:
    if not _is_number(value):
        raise TypeError(
            f"{function}(): incompatible function arguments. The following argument types are supported:\n"
            f"    1. (self: {MODULE}.Metric, arg0: float) -> None\n\nInvoked with: {value!r}"
        )
    return float(value)


class MetricFamily:
    """A metric by name; families of the same name are the same. It owns the series that it made, until its end."""

    __slots__ = ("__weakref__", "_family", "_made")

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Raises TypeError for another kind, TritonModelException for a bad name or one of another kind."""
        if not isinstance(kind, MetricKind):
            raise TypeError("MetricFamily(kind=...) must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        name, description = (
            as_text("MetricFamily(name=...)", name),
            as_text("MetricFamily(description=...)", description),
        )
        if not _NAME.fullmatch(name):
            raise TritonModelException("Error when creating MetricFamily: Invalid metric name")
        with host.lock:
            family = _families.setdefault(name, _Family(name, description, kind))
            if family.kind is not kind:
                raise TritonModelException(
                    "Error when creating MetricFamily: Family name already exists with different type"
                )
            family.holders += 1
            self._made: set[_Labels] = set()
            self._family = family

    def Metric(  # noqa: N802 - the name that models call
        self, labels: Mapping[str, str] | None = None, buckets: Iterable[float] | None = None
    ) -> Metric:
        """Make a series of this family; `buckets` are the upper bounds of a histogram, and given only for one.

        Raises:
            TritonModelException: labels or buckets are not what the kind needs.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        labels = {} if labels is None else labels
        if not all(isinstance(value, str) for value in labels.values()):
            raise TritonModelException(
                "Error when creating Metric: labels must be strings: attempt to access JSON non-string as string"
            )
        self._check_names(labels)
        key = tuple(sorted(labels.items()))
        return Metric(self, key, self._acquire_series(key, self._bounds(buckets)))

    def _acquire_series(self, labels: _Labels, bounds: tuple[float, ...]) -> _Series:
        """Return a series, a new one if there is none. This family owns it from now on."""
        with host.lock:
            family = self._family
            series = family.series.get(labels)
            if series is None:
                series = family.series[labels] = _Series(bounds)
                family.send(labels, "create")
            if labels not in self._made:
                self._made.add(labels)
                series.holders += 1
            return series

    def _check_names(self, labels: Mapping[str, str]) -> None:
        """Refuse labels that Prometheus could not read, which end Triton's process."""
        for name in labels:
            if not isinstance(name, str) or not _LABEL.fullmatch(name):
                advice = "use letters, digits and _, with neither a digit nor __ in front"
            elif name == "le" and self._family.kind is MetricKind.HISTOGRAM:
                advice = "it is the label of a histogram's buckets, use another one"
            else:
                continue
            raise TritonModelException(f"Error when creating Metric: Invalid label name '{name}': {advice}")

    def _bounds(self, buckets: Iterable[float] | None) -> tuple[float, ...]:
        if self._family.kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            return ()
        if buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        found = tuple(buckets) if isinstance(buckets, Iterable) else buckets  # an iterator can be read only once
        if isinstance(buckets, str) or not isinstance(found, tuple) or not all(map(_is_number, found)):
            raise TritonModelException(
                f"Failed to create metric. Buckets must be a list. Found {buckets!r}, expected numbers: [0.1, 1]"
            )
        bounds = tuple(map(float, found))
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise TritonModelException("Error when creating Metric: Bucket Boundaries must be strictly sorted")
        return bounds

    def __del__(self) -> None:
        with host.lock:
            family = getattr(self, "_family", None)
            if family is None:
                return
            for labels in self._made:
                series = family.series[labels]
                series.holders -= 1
                if not series.holders:
                    family.send(labels, "remove")
                    del family.series[labels]
            self._made.clear()
            family.holders -= 1
            if not family.holders:
                del _families[family.name]


Metric.__module__ = MetricKind.__module__ = MetricFamily.__module__ = MODULE
