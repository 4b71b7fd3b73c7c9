"""Statistics, compared with the figures that Triton recorded for the same requests."""

from __future__ import annotations

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import Cancelled, Internal, Unavailable
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.statistics import LATENCY_BUCKETS, Duration
from edge_serve.models.run.statistics import (
    RECENT_REQUESTS,
    bounds_of,
    failure_reason,
    new_statistics,
    record_batch,
    record_failure,
    record_first_response,
    record_response,
    record_success,
)

MS = 1_000_000


def test_model_metrics_set_the_bounds_of_the_first_response(caplog: pytest.LogCaptureFixture) -> None:
    text = """model_metrics { metric_control {
      metric_identifier { family: "%s" } histogram_options { buckets: [ 1, 2.5 ] }
    } }"""
    config = parse_model_config(text % "nv_inference_first_response_histogram_ms")

    assert bounds_of(config.model_metrics) == (1.0, 2.5)
    assert not caplog.messages
    assert bounds_of(parse_model_config(text % "nv_inference_count").model_metrics) == ()
    assert caplog.messages == [
        "Metric family 'nv_inference_count' in 'metric_identifier' is not a customizable metric in Triton core."
    ]


def test_three_requests_in_two_batches() -> None:
    stats = new_statistics()
    record_success(stats, 1, (0,), (4, 5, 7, 11), 12)
    record_batch(stats, 1, (4, 5, 7, 11), now_ms=50)
    record_success(stats, 3, (20, 22), (25, 26, 36, 38), 40)
    record_batch(stats, 4, (25, 26, 36, 38), now_ms=49)
    assert (stats.inference_count, stats.execution_count, stats.last_inference_ms) == (4, 2, 50)
    assert stats.success == Duration(3, 12 + 20 + 18)
    assert stats.queue == Duration(3, 4 + 5 + 3)
    assert stats.compute_input == Duration(3, 1 + 2 * 1)
    assert stats.compute_infer == Duration(3, 2 + 2 * 10)
    assert stats.compute_output == Duration(3, 4 + 2 * 2)
    assert sorted(stats.batches) == [1, 4]
    assert stats.batches[4].compute_infer == Duration(1, 10)
    assert stats.fail == Duration()


def test_an_empty_response_was_computed_too() -> None:
    stats = new_statistics()
    record_response(stats, 0, InferResponse("m", "1", null=True), 10, 14, 15)

    counted = stats.responses["0"]
    assert (counted.compute_infer, counted.empty_response) == (Duration(1, 5), Duration(1, 5))
    assert (counted.compute_output, counted.success) == (Duration(), Duration())


def test_buckets_hold_their_upper_bound() -> None:
    stats = new_statistics()
    for request_ns in (0, 250_000, 250_001, 10_000 * MS, 10_000 * MS + 1):
        record_success(stats, 1, (0,), (0, 0, 0, 0), request_ns)
    counts = stats.request_seconds.counts
    assert (counts[0], counts[1], counts[len(LATENCY_BUCKETS) - 1], counts[-1]) == (2, 1, 1, 1)
    assert stats.request_seconds.sum_ns == 250_000 + 250_001 + 20_000 * MS + 1
    assert stats.queue_seconds.counts[0] == 5


def test_failures_count_by_reason() -> None:
    stats = new_statistics()
    record_failure(stats, failure_reason(Unavailable("Exceeds maximum queue size"), executed=False), 5)
    record_failure(stats, failure_reason(Internal("model"), executed=True), 6)
    record_failure(stats, failure_reason(Cancelled(""), executed=True), 7)
    assert stats.failures == {"REJECTED": 1, "CANCELED": 1, "BACKEND": 1, "OTHER": 0}
    assert stats.fail == Duration(3, 18)
    assert stats.success.count == 0


def test_a_reason_that_triton_does_not_know_is_an_error() -> None:
    with pytest.raises(KeyError):
        record_failure(new_statistics(), "BAD LUCK", 1)


def test_summaries_and_first_responses_are_kept_only_when_asked_for() -> None:
    plain = new_statistics()
    record_success(plain, 1, (1,), (2, 3, 5, 8), 13)
    record_first_response(plain, 5)
    assert (plain.recent, plain.first_response) == (None, None)
    stats = new_statistics(summaries=True, histograms=True, first_response_bounds=(1.0, 2.0))
    for _ in range(RECENT_REQUESTS + 10):
        record_success(stats, 1, (1,), (2, 3, 5, 8), 13)
    for milliseconds in (1, 2, 3):
        record_first_response(stats, milliseconds * MS)
    assert stats.recent is not None
    assert len(stats.recent) == RECENT_REQUESTS
    assert stats.recent[0] == (13, 12, 1, 1, 2, 3)
    assert stats.first_response is not None
    assert stats.first_response.counts == [1, 1, 1]
    assert stats.first_response.sum_ms == 6
