"""The page docs/metrics.md, from the catalogue of metrics. `make docs` writes it."""

from __future__ import annotations

from edge_serve.messages.statistics import FAILURE_REASONS, LATENCY_BUCKETS
from edge_serve.observe.metrics.catalogue import CATALOGUE, MetricSpec

_HEAD = """# Metrics

Made from `edge_serve/observe/metrics/catalogue.py` by `make docs`; change it there.

`GET /metrics` on the metrics port (`--metrics-port`, 8002) answers Prometheus's text format.
Any other path answers 200 with an empty body and any other method 405, as Triton does.
Model metrics are read at scrape time; gauges of the CPU and the GPU are at most `--metrics-interval-ms` old.
A family without a series prints nothing, and the series of a model vanish when its version is unloaded.

A series with the label `model` has `model`, `version` and the model's `metric_tags` with one `_` in front;
`gpu_uuid` when its instances are on one GPU; `namespace`, the path of its repository, with `--model-namespacing=true`.
`reason` is one of {reasons}; all four are always there.
As in Triton, a request that is refused when it arrives (a full queue, a missing START) does not count as failed;
`edge_serve_http_requests_total` counts the answers of HTTP by status code.

`--metrics-config` (repeatable):

| setting | effect |
|---|---|
| `counter_latencies=false` | no duration counters; the other model counters stay at 0, as in Triton |
| `summary_latencies=true` | summaries; quantiles are exact over the last 60 s and at most 4,096 requests |
| `summary_quantiles=0.5:0.05,0.99:0.001` | their quantiles, in Triton's form `<quantile>:<allowed error>` |
| `histogram_latencies=true` | `nv_inference_first_response_histogram_ms`, in whole milliseconds; errors count too |

Our latency histograms are on by default, with these upper bounds in seconds: {buckets}.
The 99th percentile of the last 5 minutes, per model:

    histogram_quantile(0.99, sum by (model, le) (rate(edge_serve_request_duration_seconds_bucket[5m])))
"""


def page() -> str:
    """The page."""
    head = _HEAD.format(
        reasons=", ".join(f"`{reason}`" for reason in FAILURE_REASONS),
        buckets=", ".join(f"{bound:g}" for bound in LATENCY_BUCKETS),
    )
    triton = [metric for metric in CATALOGUE if metric.name.startswith("nv_")]
    ours = [metric for metric in CATALOGUE if not metric.name.startswith("nv_")]
    return f"{head}\n## Triton's names\n\n{_table(triton)}\n## Ours\n\n{_table(ours)}"


def _table(metrics: list[MetricSpec]) -> str:
    rows = ["| metric | type | labels | says | there when |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | {metric.when or 'always'} |")
    return "\n".join(rows) + "\n"
