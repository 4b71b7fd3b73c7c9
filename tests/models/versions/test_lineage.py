"""Metrics go on when a version is loaded again; pure."""

from __future__ import annotations

from dataclasses import fields

from edge_serve.messages.statistics import Duration, FirstResponse, ModelStatistics
from edge_serve.models.run.statistics import BACKEND, record_failure, record_first_response, record_success
from edge_serve.models.versions.lineage import Lineage


def counted(requests: int, first_response: FirstResponse | None = None) -> ModelStatistics:
    stats = ModelStatistics(first_response=first_response)
    for _ in range(requests):
        record_success(stats, 2, [0], (1000, 2000, 3000, 4000), 5000)
    record_failure(stats, BACKEND, 7)
    return stats


def test_each_counter_is_summed_or_is_of_the_present_load() -> None:
    """A counter that is added to ModelStatistics goes on over a swap, unless it is one of the present load."""
    present = {"batches", "last_inference_ms", "recent", "recent_hits", "recent_misses", "responses"}
    first = counted(2, FirstResponse((1.0, 2.0)))
    record_first_response(first, 1_500_000)
    for one in fields(ModelStatistics):
        value = getattr(first, one.name)
        if isinstance(value, int):
            setattr(first, one.name, value + 3)
        elif isinstance(value, Duration):
            setattr(first, one.name, Duration(value.count + 3, value.ns + 3))
    lineage = Lineage()
    lineage.add(first)

    total = lineage.total(ModelStatistics(first_response=FirstResponse((1.0, 2.0))))

    for one in fields(ModelStatistics):
        if one.name not in present:
            assert getattr(total, one.name) == getattr(first, one.name), one.name


def test_a_first_load_is_read_as_it_is() -> None:
    now = counted(1)
    assert Lineage().total(now) is now


def test_loads_that_drain_and_loads_that_are_closed_both_count() -> None:
    lineage, first, second, third = Lineage(), counted(1), counted(2), counted(3)
    lineage.add(first)
    lineage.add(second)
    lineage.close(first)
    lineage.close(first)
    record_success(second, 2, [0], (1000, 2000, 3000, 4000), 5000)  # while it drains

    total = lineage.total(third)

    assert (total.success.count, total.success.ns, total.inference_count) == (7, 7 * 5000, 14)
    assert (total.fail.count, total.failures[BACKEND]) == (3, 3)
    assert (sum(total.request_seconds.counts), total.request_seconds.sum_ns) == (7, 7 * 5000)
    assert third.success.count == 3, "statistics begin anew"
    lineage.close(second)
    assert lineage.total(third) == total


def test_the_buckets_of_first_responses_go_on_while_they_are_the_same() -> None:
    lineage, before, now = Lineage(), counted(0, first_response=FirstResponse()), counted(0)
    record_first_response(before, 2_000_000)
    lineage.add(before)
    for bounds, count in ((FirstResponse().bounds, 1), ((1.0,), 0)):
        now.first_response = FirstResponse(bounds)
        total = lineage.total(now).first_response
        assert total is not None
        assert (total.bounds, sum(total.counts)) == (bounds, count)
