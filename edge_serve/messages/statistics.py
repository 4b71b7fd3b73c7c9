"""Statistics of one model version: counters that only grow (triton-inference-server/core src/infer_stats.cc)."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from edge_serve.records import slotted

if TYPE_CHECKING:
    from edge_serve.messages.trace import Trace


@slotted
class Duration:
    """How often, and how long in all (nanoseconds)."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Add an event of `ns` nanoseconds."""
        self.count += 1
        self.ns += ns


@slotted
class ComputeTimes:
    """How long the members of an ensemble computed for one request of it, nanoseconds; `trace` = its trace, if it has
    one."""

    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    trace: Trace | None = None

    def add(self, compute_start_ns: int, input_end_ns: int, output_start_ns: int, compute_end_ns: int) -> None:
        """Add the times of one member."""
        self.input_ns += input_end_ns - compute_start_ns
        self.infer_ns += output_start_ns - input_end_ns
        self.output_ns += compute_end_ns - output_start_ns


@slotted
class BatchStatistics:
    """Executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@slotted
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


@slotted
class Histogram:
    """Counts per bucket (not cumulative; one more than the bounds, the last is +Inf) and the sum in nanoseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    sum_ns: int = 0


#: upper bounds in milliseconds of nv_inference_first_response_histogram_ms, unless `model_metrics` gives others
FIRST_RESPONSE_BUCKETS = (100.0, 500.0, 2000.0, 5000.0)


@slotted
class FirstResponse:
    """Milliseconds from a request to its first response, with `--metrics-config=histogram_latencies=true`."""

    bounds: tuple[float, ...] = FIRST_RESPONSE_BUCKETS
    counts: list[int] = field(default_factory=list)
    sum_ms: int = 0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)


class Recent(NamedTuple):
    """One successful request for the quantiles of `--metrics-config=summary_latencies=true`, all in nanoseconds."""

    end_ns: int
    request_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@slotted
class ModelStatistics:
    """Everything /stats and /metrics say about one version.

    Attributes:
        last_inference_ms: milliseconds since the epoch of the last request; 0 = never.
        inference_count: batch items; execution_count: executions.
        compute_input, compute_infer, compute_output: times of a batch, once for each request in it, as in Triton.
        batches: rows -> executions with so many, each counted once.
        failures: reason -> requests.
        pending: requests accepted and not yet executing.
        client_errors: requests answered with an error of the client: HTTP status 4xx, or its gRPC code.
        model_errors: responses in which the model itself put an error; Triton counts their requests as successes.
        recent, first_response: None unless `--metrics-config` asks for summaries, for histograms.
        recent_hits, recent_misses: look-ups of the response cache, as `recent`, of which end and whole time are set.
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
    client_errors: int = 0
    model_errors: int = 0
    request_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    compute_seconds: Histogram = field(default_factory=Histogram)
    recent: deque[Recent] | None = None
    recent_hits: deque[Recent] | None = None
    recent_misses: deque[Recent] | None = None
    first_response: FirstResponse | None = None
