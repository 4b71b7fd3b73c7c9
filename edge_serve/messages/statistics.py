"""Statistics of one model version: counters that only grow (triton-inference-server/core src/infer_stats.cc)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Duration:
    """How often, and how long in all (nanoseconds)."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """One more event of `ns` nanoseconds."""
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseStatistics:
    """The n-th response of each request of a decoupled model."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


#: reasons of nv_inference_request_failure, all four always shown
FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

#: upper bounds in seconds of our latency histograms
LATENCY_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Histogram:
    """Counts per bucket (not cumulative; one more than the bounds, the last is +Inf) and the sum in nanoseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    sum_ns: int = 0


@dataclass(slots=True)
class ModelStatistics:
    """Everything /stats and /metrics say about one version.

    Attributes:
        last_inference_ms: milliseconds since the epoch of the last request; 0 = never.
        inference_count: batch items; execution_count: executions.
        failures: reason -> requests.
        pending: requests accepted and not yet executing.
    """

    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    responses: dict[str, ResponseStatistics] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURE_REASONS, 0))
    pending: int = 0
    request_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    compute_seconds: Histogram = field(default_factory=Histogram)
