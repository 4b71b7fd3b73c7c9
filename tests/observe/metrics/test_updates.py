"""The status file of edge-ota: read, whatever it holds, and shown on the metrics page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from edge_serve.observe.metrics.gpu import no_gpus
from edge_serve.observe.metrics.options import MetricsOptions
from edge_serve.observe.metrics.page import Page
from edge_serve.observe.metrics.updates import BundleStatus, Updates, read_updates
from tests.observe.metrics.conftest import FakeClock, FakeSource, rendered

NOW = 1_800_000_000.0
FILE: dict[str, Any] = {
    "schema": 1,
    "agent": "0.1.0",
    "state": "idle",
    "last_check": NOW - 60,
    "last_success": NOW - 60,
    "error": {"reason": "no_space", "message": "the disk is full"},
    "metadata_expires": {"timestamp": NOW + 3600},
    "clock_unset": False,
    "models": {
        "det": {"release": 16, "next": 17, "stage": "PROBATION", "progress": {"done_bytes": 5, "total_bytes": 10},
                "reason": "", "models": ["det"], "failed": [15, 14]},
        "ocr": {"release": 3},
    },
    "counters": {"bytes_total": 100, "failures": {"fetch/no_space": 2}, "rollbacks": 1, "bad_releases": 1},
    "disk_free_bytes": 4096,
    "of a newer agent": [1, 2],
}  # fmt: skip


def write(path: Path, found: object) -> str:
    """Write a status file that is 5 s old."""
    path.write_text(json.dumps(found))
    os.utime(path, (NOW - 5, NOW - 5))
    return str(path)


def test_everything_is_read(tmp_path: Path) -> None:
    found = read_updates(write(tmp_path / "status.json", FILE), NOW)
    assert found is not None
    assert (found.age_seconds, found.problem, found.error, found.error_reason) == (
        5,
        "",
        "the disk is full",
        "no_space",
    )
    assert found.bundles == (
        BundleStatus("det", ("det",), 16, 0, 17, "PROBATION", 5, 10, failed=(14, 15)),
        BundleStatus("ocr", release=3),
    )
    assert [one.state for one in found.bundles] == ["PROBATION", "GOOD"]


def test_a_file_that_is_not_there_means_that_there_is_no_agent(tmp_path: Path) -> None:
    assert read_updates(str(tmp_path / "none"), NOW) is None
    assert read_updates("", NOW) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 2}', "\0", "[" * 100_000])
def test_a_file_that_cannot_be_read_is_a_problem_and_no_fault(tmp_path: Path, content: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(content)
    found = read_updates(str(path), NOW)
    assert found is not None
    assert f"{path} is no status file of edge-ota" in found.problem
    os.remove(path)
    os.mkfifo(path)
    assert "cannot be read" in (read_updates(str(path), NOW) or Updates()).problem


@pytest.mark.parametrize("wrong", [None, [], "x", {"a": []}, True, 1e999, -1])
def test_members_of_a_wrong_type_count_as_absent(tmp_path: Path, wrong: object) -> None:
    for member in FILE.keys() - {"schema"}:
        found = read_updates(write(tmp_path / "status.json", {**FILE, member: wrong}), NOW)
        assert found is not None
        assert found.problem == ""
    rows = {"det": dict.fromkeys(("release", "next", "stage", "progress", "reason", "models", "failed"), wrong)}
    found = read_updates(write(tmp_path / "status.json", {**FILE, "models": rows}), NOW)
    assert found is not None
    assert [one.name for one in found.bundles] == ["det"]


def test_the_metrics_page_shows_it(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "status.json"
    page = Page(FakeSource(), MetricsOptions(cpu=False), no_gpus, clock, str(path))
    assert b"edge_ota" not in rendered(page)

    write(path, FILE)
    text = rendered(page).decode()
    assert "edge_ota_status_readable 1\n" in text
    assert 'edge_ota_state{model="det",state="PROBATION"} 1\n' in text
    assert 'edge_ota_state{model="ocr",state="GOOD"} 1\n' in text
    assert 'edge_ota_release{model="det",release="16"} 1\n' in text
    assert 'edge_ota_release_failed{model="det",release="15"} 1\n' in text
    assert 'edge_ota_failures_total{reason="no_space",step="fetch"} 2\n' in text
    assert "edge_ota_rollbacks_total 1\n" in text
    assert "edge_ota_disk_free_bytes 4096\n" in text
    assert "edge_ota_status_age_seconds " in text

    path.write_text("{")
    text = rendered(page).decode()
    assert "edge_ota_status_readable 0\n" in text
    assert text.count("\nedge_ota") == 1
