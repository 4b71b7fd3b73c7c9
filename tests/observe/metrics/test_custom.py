"""Metrics of Python models: what they send is gathered, and what Prometheus could not read is ignored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edge_serve.observe.metrics import custom
from edge_serve.observe.metrics.custom import CustomMetrics
from edge_serve.observe.metrics.source import CustomSample
from tests.footprint import footprint


def update(**changes: Any) -> dict[str, Any]:
    plain = {"name": "m", "description": "", "kind": "counter", "labels": {}, "operation": "increment", "value": 1}
    return plain | changes


def samples(*updates: dict[str, Any]) -> list[CustomSample]:
    metrics = CustomMetrics()
    for one in updates:
        metrics.apply(one)
    return [sample for family in metrics.families() for sample in family.samples]


def test_increments_add_up_and_a_removed_series_disappears() -> None:
    assert [sample.value for sample in samples(update(), update(value=2), update(labels={"a": "b"}))] == [3, 1]
    assert samples(update(), update(operation="remove")) == []


def test_family_of_two_models_has_the_text_and_the_kind_of_the_first() -> None:
    metrics = CustomMetrics()
    for model, changes in (("a", {"description": "first"}), ("b", {"description": "second"}), ("c", {"kind": "gauge"})):
        metrics.apply(update(labels={"model": model}, **changes))

    (family,) = metrics.families()
    assert (family.description, family.kind) == ("first", "counter")
    assert [sample.labels["model"] for sample in family.samples] == ["a", "b", "c"]


def test_observations_fall_into_buckets() -> None:
    seen = [update(kind="histogram", operation="observe", bounds=(1, 2), value=value) for value in (0.5, 1, 3)]
    assert samples(*seen) == [CustomSample({}, 4.5, (1.0, 2.0), (2, 0, 1))]


@pytest.mark.parametrize("bounds", [(), (math.inf,), None])
def test_a_histogram_without_bounds_has_the_bucket_of_all(bounds: object) -> None:
    assert samples(update(kind="histogram", operation="observe", bounds=bounds)) == [CustomSample({}, 1.0, (), (1,))]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"a-b": "x"}},
        {"labels": {"": "x"}},
        {"labels": {"__name__": "x"}},
        {"labels": {"a": "x", "1b": "x"}},
        {"kind": "histogram", "labels": {"le": "x"}},
        {"kind": "histogram", "bounds": (2, 1)},
        {"kind": "histogram", "bounds": (1, 1)},
        {"kind": "histogram", "bounds": (math.nan,)},
        {"kind": "histogram", "bounds": (-math.inf, 1)},
        {"kind": "strange"},
        {"labels": None},
        {"value": 10**400},
        {"operation": "remove"},
    ],
)
def test_updates_invalid_for_prometheus_leave_no_memory(changes: dict[str, Any]) -> None:
    metrics = CustomMetrics()
    metrics.apply(update(**changes))
    assert metrics.families() == []
    assert footprint(metrics) == footprint(CustomMetrics())


def test_removed_series_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "MAX_SERIES", 1)
    assert [sample.labels for sample in samples(update(), update(name="n", labels={"a": "b"}))] == [{}]
    made = samples(update(), update(operation="remove"), update(name="n", labels={"a": "b"}))
    assert [sample.labels for sample in made] == [{"a": "b"}]
