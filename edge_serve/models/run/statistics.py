"""Updates the statistics of a version, with Triton's rules on what counts (core src/infer_stats.cc).

Called by the driver on the hot path, for all requests of a batch at once: attribute arithmetic, no objects. All times
are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from edge_serve.backends.base import Reply
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import Cancelled, EdgeServeError
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.statistics import (
    LATENCY_BUCKETS,
    BatchStatistics,
    FirstResponse,
    ModelStatistics,
    Recent,
    ResponseStatistics,
)
from edge_serve.scheduling.core import Entry
from edge_serve.workers.front.frames.batch import BatchReply

log = logging.getLogger(__name__)

#: the family whose buckets `model_metrics` may set (core src/metric_model_reporter.cc)
_FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"

#: failure reasons (messages.statistics.FAILURE_REASONS)
REJECTED, CANCELED, BACKEND, OTHER = "REJECTED", "CANCELED", "BACKEND", "OTHER"

#: requests kept for the quantiles of summaries
RECENT_REQUESTS = 4096

#: when the computation starts, its inputs are ready, its outputs are made, and it ends
ComputeMarks = tuple[int, int, int, int]

_BOUNDS_NS = tuple(round(bound * 1e9) for bound in LATENCY_BUCKETS)


def new_statistics(
    *, summaries: bool = False, histograms: bool = False, first_response_bounds: tuple[float, ...] = ()
) -> ModelStatistics:
    """Create the statistics of a version that was just loaded.

    Args:
        summaries, histograms: as in `--metrics-config`.
        first_response_bounds: of the configuration's `model_metrics`, milliseconds; empty = Triton's default.
    """
    stats = ModelStatistics()
    if summaries:
        stats.recent = deque(maxlen=RECENT_REQUESTS)
        stats.recent_hits = deque(maxlen=RECENT_REQUESTS)
        stats.recent_misses = deque(maxlen=RECENT_REQUESTS)
    if histograms:
        stats.first_response = FirstResponse(first_response_bounds) if first_response_bounds else FirstResponse()
    return stats


def bounds_of(metrics: pb.ModelMetrics) -> tuple[float, ...]:
    """Return the bucket bounds in `model_metrics`, for `new_statistics`; empty = none. Log families that have none."""
    bounds: tuple[float, ...] = ()
    for control in metrics.metric_control:
        family = control.metric_identifier.family
        if family == _FIRST_RESPONSE:
            bounds = tuple(control.histogram_options.buckets)
        else:
            text = "Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core."
            log.warning(text, family)
    return bounds


def record_replies(
    stats: ModelStatistics,
    entries: Sequence[Entry],
    results: Sequence[Reply],
    batch: BatchReply,
    marks: ComputeMarks,
    now: int,
) -> None:
    """Count a batch and its requests, which were answered at `now` with `results`."""
    now_ms = int(time.time() * 1000)
    rows, arrivals_ns = 0, []
    for entry, result in zip(entries, results, strict=True):
        if result.error is None or result.answered:
            rows += entry.rows
            arrivals_ns.append(entry.arrival_ns)
            if result.error is not None:
                stats.model_errors += 1
        else:
            record_failure(stats, failure_reason(result.error, executed=True), now - entry.arrival_ns)
    if arrivals_ns:
        record_success(stats, rows, arrivals_ns, marks, now)
    if batch.each:
        for entry in entries:
            record_batch(stats, entry.rows, marks, now_ms)
    else:
        null_rows = len(batch.replies) - len(entries)
        record_batch(stats, sum([entry.rows for entry in entries]) + null_rows, marks, now_ms)


def share(marks: ComputeMarks, count: int) -> ComputeMarks:
    """Return the times of one of `count` executions that were timed together."""
    start, ready, done, end = marks
    return start, start + (ready - start) // count, start + (done - start) // count, start + (end - start) // count


def record_success(
    stats: ModelStatistics, rows: int, arrivals_ns: Sequence[int], marks: ComputeMarks, end_ns: int
) -> None:
    """Count the requests of one executed batch. Each counts the whole computation of the batch, as in Triton.

    Args:
        rows: batch items of these requests together, 1 each for a model that does not batch.
        arrivals_ns: when each arrived; it waited from then until the computation started.
    """
    compute_start_ns, input_end_ns, output_start_ns, compute_end_ns = marks
    count = len(arrivals_ns)
    arrived_ns = sum(arrivals_ns)
    compute_ns = compute_end_ns - compute_start_ns
    stats.inference_count += rows
    total = stats.success
    total.count += count
    total.ns += count * end_ns - arrived_ns
    total = stats.queue
    total.count += count
    total.ns += count * compute_start_ns - arrived_ns
    total = stats.compute_input
    total.count += count
    total.ns += count * (input_end_ns - compute_start_ns)
    total = stats.compute_infer
    total.count += count
    total.ns += count * (output_start_ns - input_end_ns)
    total = stats.compute_output
    total.count += count
    total.ns += count * (compute_end_ns - output_start_ns)
    histogram = stats.compute_seconds
    histogram.counts[bisect_left(_BOUNDS_NS, compute_ns)] += count
    histogram.sum_ns += count * compute_ns
    stats.request_seconds.sum_ns += count * end_ns - arrived_ns
    stats.queue_seconds.sum_ns += count * compute_start_ns - arrived_ns
    request_counts, queue_counts = stats.request_seconds.counts, stats.queue_seconds.counts
    for arrival_ns in arrivals_ns:
        request_counts[bisect_left(_BOUNDS_NS, end_ns - arrival_ns)] += 1
        queue_counts[bisect_left(_BOUNDS_NS, compute_start_ns - arrival_ns)] += 1
    if stats.recent is not None:
        parts = (input_end_ns - compute_start_ns, output_start_ns - input_end_ns, compute_end_ns - output_start_ns)
        for arrival_ns in arrivals_ns:
            stats.recent.append(Recent(end_ns, end_ns - arrival_ns, compute_start_ns - arrival_ns, *parts))


def record_failure(stats: ModelStatistics, reason: str, ns: int) -> None:
    """Count a request that failed `ns` nanoseconds after it arrived. Requests refused at validation are not counted at
    all."""
    stats.fail.count += 1
    stats.fail.ns += ns
    stats.failures[reason] += 1


def record_cache_hit(stats: ModelStatistics, ns: int, now_ns: int) -> None:
    """Count a request answered from the response cache after `ns`: a success without an inference or an execution."""
    stats.success.add(ns)
    stats.queue.add(0)
    stats.cache_hit.add(ns)
    histogram = stats.request_seconds
    histogram.counts[bisect_left(_BOUNDS_NS, ns)] += 1
    histogram.sum_ns += ns
    if stats.recent_hits is not None:
        stats.recent_hits.append(Recent(now_ns, ns, 0, 0, 0, 0))


def record_cache_miss(stats: ModelStatistics, ns: int, now_ns: int) -> None:
    """Count `ns` for looking up a request and storing its response; otherwise the request counts like any other."""
    stats.success.ns += ns
    stats.cache_miss.add(ns)
    if stats.recent_misses is not None:
        stats.recent_misses.append(Recent(now_ns, ns, 0, 0, 0, 0))


def record_batch(stats: ModelStatistics, rows: int, marks: ComputeMarks, now_ms: int) -> None:
    """Count an executed batch, also when its requests failed.

    Args:
        rows: of all its requests together.
        now_ms: milliseconds since the epoch.
    """
    compute_start_ns, input_end_ns, output_start_ns, compute_end_ns = marks
    if now_ms > stats.last_inference_ms:
        stats.last_inference_ms = now_ms
    stats.execution_count += 1
    batch = stats.batches.get(rows)
    if batch is None:
        batch = stats.batches[rows] = BatchStatistics()
    duration = batch.compute_input
    duration.count += 1
    duration.ns += input_end_ns - compute_start_ns
    duration = batch.compute_infer
    duration.count += 1
    duration.ns += output_start_ns - input_end_ns
    duration = batch.compute_output
    duration.count += 1
    duration.ns += compute_end_ns - output_start_ns


def record_first_response(stats: ModelStatistics, ns: int) -> None:
    """Count the first response to a request, `ns` after it arrived, in whole milliseconds as Triton. No effect unless
    histograms are on."""
    histogram = stats.first_response
    if histogram is not None:
        milliseconds = ns // 1_000_000
        histogram.counts[bisect_left(histogram.bounds, milliseconds)] += 1
        histogram.sum_ms += milliseconds


def record_response(
    stats: ModelStatistics, index: int, response: InferResponse, start_ns: int, received_ns: int, end_ns: int
) -> None:
    """Count the response number `index` of a request of a decoupled model.

    Args:
        start_ns: when the response before it was delivered, or the request was sent to the model.
        received_ns: when it arrived; its computation took until then, its delivery until `end_ns`.
    """
    of = stats.responses.get(str(index))
    if of is None:
        of = stats.responses[str(index)] = ResponseStatistics()
    if response.null:
        of.compute_infer.add(end_ns - start_ns)
        of.empty_response.add(end_ns - start_ns)
    elif isinstance(response.error, Cancelled):
        of.cancel.add(end_ns - start_ns)
    else:
        of.compute_infer.add(received_ns - start_ns)
        of.compute_output.add(end_ns - received_ns)
        (of.success if response.error is None else of.fail).add(end_ns - start_ns)


def failure_reason(error: EdgeServeError, *, executed: bool) -> str:
    """Return the reason under which a failure counts: the model's own, a client that disconnected, or a queue that
    refused."""
    if isinstance(error, Cancelled):
        return CANCELED
    return BACKEND if executed else REJECTED
