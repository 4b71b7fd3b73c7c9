"""The alerts and the dashboard of edge-ota: the metrics exist, alerts fire when they should, queries return data."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_serve.observe.metrics.catalogue import CATALOGUE
from tests.server.running import running

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/edge-ota.rules.yml"
DASHBOARD = ROOT / "deploy/grafana/edge-ota.json"
KNOWN = {metric.name for metric in CATALOGUE}
WITHIN = 30.0

#: alert -> its labels; the values of a series, one an hour; the first hour at which it fires
CASES = {
    "UpdateAgentIsDead": ({}, "edge_ota_status_age_seconds", "300 300 7000 10900 14500", 4),
    "UpdateStatusIsUnreadable": ({}, "edge_ota_status_readable", "1 1 0 0", 3),
    "UpdatesDoNotSucceed": ({}, "edge_ota_last_success_timestamp", "0x40", 25),
    "UpdatesNeverSucceeded": ({}, "edge_ota_status_readable", "1x40", 24),
    "UpdateMetadataExpires": ({"role": "timestamp"}, "edge_ota_metadata_expires_seconds", "180000x40", 27),
    "ReleaseRolledBack": ({}, "edge_ota_rollbacks_total", "0 0 1 1", 2),
    "ReleaseIsBad": ({}, "edge_ota_bad_releases", "0 0 1", 2),
    "NoSpaceForReleases": ({"reason": "no_space", "step": "planned"}, "edge_ota_failures_total", "_ _ 1x9", 2),
    "ClockIsUnset": ({}, "edge_ota_clock_unset", "0 1 1", 2),
    "UpdatesArePaused": ({}, "edge_ota_paused", "0 1x40", 25),
}


def queries() -> list[str]:
    """Return the queries of the dashboard, with a span that Grafana would fill in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"].replace("$__rate_interval", "10s") for panel in panels for target in panel["targets"]]


def every_five_minutes(values: str) -> str:
    """Return hourly values as promtool wants them: a series without a sample in five minutes is stale."""
    found = []
    for one in values.split():
        value, _, more = one.partition("x")
        hours = int(more or 0) + 1
        found.append(f"_x{12 * hours}" if value == "_" else f"{value}x{12 * hours - 1}")
    return " ".join(found)


def case(alert: str) -> dict[str, Any]:
    """Return a test of promtool: the alert is silent one hour before it fires."""
    labels, series, values, hour = CASES[alert]
    text = ", ".join(f'{name}="{value}"' for name, value in {"instance": "cart", "job": "edge-serve", **labels}.items())
    shown = {"instance": "cart", **({"role": labels["role"]} if "role" in labels else {})}
    return {
        "name": alert, "interval": "5m",
        "input_series": [{"series": f"{series}{{{text}}}", "values": every_five_minutes(values)}],
        "promql_expr_test": [
            {
                "expr": f'count by (instance, alertname, role) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
                "eval_time": f"{when}h",
                "exp_samples": [
                    {"labels": "{" + ", ".join(f'{k}="{v}"' for k, v in {**shown, "alertname": alert}.items()) + "}",
                     "value": 1}
                ] if when == hour else [],
            }
            for when in (hour - 1, hour)
        ],
    }  # fmt: skip


def test_every_metric_exists_and_every_alert_has_a_case() -> None:
    text = RULES.read_text()
    assert re.findall(r"alert: (\w+)", text) == list(CASES)
    assert set(re.findall(r"\bedge_ota_\w+", "\n".join([text, *queries()]))) <= KNOWN


def test_the_release_that_serves_is_that_of_the_last_scrape() -> None:
    """A query of a range also returns the series of the releases before it, and the panel shows each series."""
    (panel,) = [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] == "stat"]
    (target,) = panel["targets"]
    assert (target["instant"], target["range"]) == (True, False)
    assert panel["options"]["textMode"] == "name", "the value is always 1"


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus")
def test_alerts_fire_at_their_thresholds(tmp_path: Path) -> None:
    succeeded = case("UpdatesNeverSucceeded")  # a device whose checks succeed is silent
    succeeded["input_series"].append(
        {"series": 'edge_ota_last_success_timestamp{instance="cart"}', "values": "0+300x500"}
    )
    succeeded["promql_expr_test"][-1]["exp_samples"] = []
    tests = [*map(case, CASES), succeeded]
    found = {"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": tests}
    (tmp_path / "test.yml").write_text(json.dumps(found))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def status_file(tmp_path: Path) -> Path:
    """Return a status file with every field."""
    now = time.time()
    document = {
        "schema": 1, "time": now, "agent": "0.1.0", "state": "idle", "last_check": now, "last_success": now,
        "metadata_expires": {"root": now + 1e6, "timestamp": now + 1e5}, "clock_unset": False, "disk_free_bytes": 1e9,
        "models": {"det": {"release": 17, "previous": 16, "next": 18, "stage": "PROBATION", "models": ["det"]}},
        "counters": {
            "bytes_total": 5000, "failures": {"planned/no_space": 1}, "rollbacks": 1, "bad_releases": 1,
            "engine_build_seconds": 61.5,
        },
    }  # fmt: skip
    path = tmp_path / "status.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def prometheus(tmp_path: Path, status_file: Path) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes a server with the status file."""
    (tmp_path / "models").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--model-repository", str(tmp_path / "models"), "--ota-status-file", str(status_file))
    with running(*flags) as server:
        scrape = [{"job_name": "edge-serve", "static_configs": [{"targets": [f"127.0.0.1:{server.metrics}"]}]}]
        settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrape}
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
        command = [
            "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with open(tmp_path / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def ask(address: str, query: str) -> list[Any]:
    """Return the samples of a query; none while Prometheus does not answer."""
    try:
        url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except OSError:
        return []


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus: apt-get install prometheus")
def test_every_query_of_the_dashboard_returns_data(prometheus: str) -> None:
    missing, end = queries(), time.monotonic() + WITHIN
    assert len(missing) > 12
    while missing and time.monotonic() < end:
        missing = [query for query in missing if not ask(prometheus, query)]
        time.sleep(0.3)
    assert not missing
    (sample,) = ask(prometheus, "edge_ota_release")
    assert (sample["metric"]["model"], sample["metric"]["release"]) == ("det", "17")
    assert not ask(prometheus, "edge_ota_release offset 1h"), "the check above can fail"
