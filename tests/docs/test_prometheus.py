"""The alerts and queries of docs/prometheus.md and of the dashboard have metrics that exist, and are valid PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edge_serve.observe.metrics.catalogue import CATALOGUE
from tests.docs.pages import ROOT, steps

PAGE = "docs/prometheus.md"
DASHBOARD = ROOT / "docs/examples/grafana.json"
KNOWN = {f"{metric.name}{end}" for metric in CATALOGUE for end in ("", "_bucket", "_sum", "_count")}
#: of Triton's dashboard (deploy/k8s-onprem/dashboard.json in its repository)
TRITONS = {
    "nv_inference_count", "nv_inference_request_success", "nv_inference_request_failure",
    "nv_inference_compute_infer_duration_us", "nv_inference_queue_duration_us",
}  # fmt: skip
ALERT_TEST = """
rule_files: [edge-serve.rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'edge_serve_oldest_batch_seconds{job="edge-serve", instance="cart", model="seg", version="1"}'
        values: '0 0 15 30'
      - series: 'up{job="edge-serve", instance="cart"}'
        values: '1 1 1 1 1 1 1 1'
      - series: 'edge_serve_model_ready{job="edge-serve", instance="cart", model="simple", version="1"}'
        values: '1 1 stale'
      - series: 'edge_serve_model_ready{job="edge-serve", instance="cart", model="seg", version="1"}'
        values: '1 1 1 1 1 1 1 1'
      - series: 'edge_serve_model_ready{job="edge-serve", instance="cart", model="seg", version="2"}'
        values: '1 1 0 0 0 0 0 0'
    alert_rule_test:
      - {eval_time: 15s, alertname: ModelHangs}
      - {eval_time: 30s, alertname: ModelHangs, exp_alerts: [{exp_labels: {instance: cart, model: seg}}]}
      - {eval_time: 30s, alertname: ServerDown}
      - {eval_time: 75s, alertname: ModelIsNotReady}
      - {eval_time: 105s, alertname: ModelIsNotReady, exp_alerts: [{exp_labels: {instance: cart, model: seg}}]}
      - {eval_time: 15s, alertname: ModelIsMissing}
      - eval_time: 105s
        alertname: ModelIsMissing
        exp_alerts: [{exp_labels: {instance: cart, job: edge-serve}}]
"""


def rules() -> str:
    return next(step.text for step in steps(PAGE) if step.detail.endswith("rules.yml"))


def queries() -> list[str]:
    """Return the queries of the page's table and of the dashboard, with a span that Grafana would fill in."""
    table = [
        query for row in re.findall(r"^\|.*\?.*$", (ROOT / PAGE).read_text(), re.M) for query in row.split("`")[1::2]
    ]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = [target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]]
    return table + drawn


def test_every_metric_exists() -> None:
    assert len(queries()) > 15
    found = set(re.findall(r"\b(?:nv|edge_serve)_\w+", "\n".join([rules(), *queries()])))

    assert found | TRITONS <= KNOWN


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus")
def test_promtool_understands_the_queries_and_the_alerts(tmp_path: Path) -> None:
    recorded = [{"record": f"query{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "page", "rules": recorded}]}))
    (tmp_path / "edge-serve.rules.yml").write_text(rules())
    (tmp_path / "test.yml").write_text(ALERT_TEST)

    for command in (["check", "rules", "queries.yml"], ["test", "rules", "test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr
