"""Rates and latencies between two documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_serve.messages.statistics import LATENCY_BUCKETS
from edge_serve.models.run.statistics import record_failure, record_success
from edge_serve.observe.status.document import build
from edge_serve.observe.status.rates import Rates, between, quantile, totals_of
from tests.observe.status.documents import MS, facts, served, server


def later(requests: int = 0, failures: int = 0, *, seconds: float = 2.0, ns: int = 2 * MS) -> tuple[Any, Any]:
    """Two documents, so many seconds apart, with so many requests of `ns` each between them."""
    model = served()
    before = build(facts(models=[model], totals=model.statistics))
    for _ in range(requests):
        record_success(model.statistics, 1, (0,), (MS, MS, 2 * MS, 2 * MS), ns)
    for _ in range(failures):
        record_failure(model.statistics, "OTHER", 1)
    after = facts(models=[model], totals=model.statistics)
    return before, build(replace(after, clock_ns=after.clock_ns + round(seconds * 1e9)))


def test_rates_are_differences_over_time() -> None:
    total, each = between(*later(20, 4))

    assert total.requests == 10.0
    assert each[("", "det", "1")] == total


def test_latencies_are_those_of_the_while_between() -> None:
    total, _ = between(*later(100, ns=200 * MS))

    assert total.median == pytest.approx(0.175)
    assert total.slowest == pytest.approx(0.1 + 0.15 * 0.99)


def test_a_quiet_while_has_no_latency() -> None:
    total, _ = between(*later())

    assert total == Rates()


def test_a_model_that_was_loaded_anew_begins_at_nought() -> None:
    before, after = later(20)
    total, _ = between(after, before | {"clock_ns": after["clock_ns"] + 1_000_000_000})

    assert total.requests == 10.0


def test_a_model_that_is_new_counts_from_nought() -> None:
    before, after = later()
    nothing = build(facts(models=[]))["totals"]
    total, each = between(before | {"models": [], "totals": nothing}, after)

    assert total.requests == each["", "det", "1"].requests == 5.0


def test_responses_of_an_unloaded_model_still_count() -> None:
    before, after = later(20)
    total, each = between(before, after | {"models": []})

    assert total.requests == 10.0
    assert each == {}
    assert totals_of(after | {"models": []}).requests == totals_of(after).requests == 30


def test_rates_work_without_totals_of_an_older_server() -> None:
    _, after = later(20)

    assert totals_of({"models": after["models"]}) == totals_of(after)


def test_another_process_or_no_earlier_document_gives_no_rates() -> None:
    before, after = later(20)
    other = build(replace(facts(), server=server(pid=99)))

    assert between(None, after) == (Rates(), {("", "det", "1"): Rates()})
    assert between(other, after)[0] == Rates()
    assert between(after, after)[0] == Rates()
    assert between(before, after)[0] != Rates()


def test_quantiles_lie_within_their_bucket() -> None:
    assert quantile(0.5, [0, 10, 0], [1.0, 2.0]) == 1.5
    assert quantile(0.5, [5, 5, 0], [1.0, 2.0]) == 1.0
    assert quantile(0.99, [0, 0, 10], [1.0, 2.0]) == 2.0
    assert quantile(0.5, [0, 0, 0], [1.0, 2.0]) is None
    assert quantile(1.0, [1] * (len(LATENCY_BUCKETS) + 1), LATENCY_BUCKETS) == LATENCY_BUCKETS[-1]
