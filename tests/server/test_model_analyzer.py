"""Triton's Model Analyzer, unmodified, in `local` mode: it starts `tritonserver` and ends with its report.

Slow because it and perf_analyzer may have to be fetched; skipped where they cannot be had.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shlex
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from benchmarks import peer
from tests.server.running import python_model

ANALYZER = "triton-model-analyzer==1.58.0"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def analyzer() -> Path:
    """The program, in an environment of its own that is kept."""
    program = peer.CACHE / "model-analyzer/bin/model-analyzer"
    if not program.exists():
        venv.create(program.parents[1], with_pip=True, clear=True)
        done = subprocess.run([program.with_name("pip"), "install", "-q", ANALYZER], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{ANALYZER} cannot be installed: {done.stderr.strip()[-500:]}")
    return program


@pytest.fixture
def perf_analyzer(tmp_path: Path) -> Path:
    """A program that writes its report to the given path, and not below another root."""
    try:
        start = peer.perf_analyzer()
    except peer.NoPeerError as why:
        pytest.skip(f"perf_analyzer: {why}")
    if start[0] == "unshare":
        root = Path(start[5])
        libraries = f"{root}/usr/lib/x86_64-linux-gnu"
        start = [f"{root}/lib64/ld-linux-x86-64.so.2", "--library-path", libraries, f"{root}{start[-1]}"]
    script = tmp_path / "perf_analyzer"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n')
    script.chmod(0o755)
    return script


def free_ports(count: int) -> list[int]:
    """Ports that no program listens on now."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


def test_local_mode_ends_with_its_report(analyzer: Path, perf_analyzer: Path, tmp_path: Path) -> None:
    python_model(tmp_path / "models", "add_sub")
    http, grpc, metrics = free_ports(3)
    settings = {
        "model_repository": str(tmp_path / "models"),
        "output_model_repository_path": str(tmp_path / "out"),
        "export_path": str(tmp_path / "results"),
        "checkpoint_directory": str(tmp_path / "checkpoints"),
        "triton_launch_mode": "local",
        "triton_server_path": str(Path(sys.executable).with_name("tritonserver")),
        "triton_output_path": str(tmp_path / "server.log"),
        "triton_http_endpoint": f"localhost:{http}",
        "triton_grpc_endpoint": f"localhost:{grpc}",
        "triton_metrics_url": f"http://localhost:{metrics}/metrics",
        "perf_analyzer_path": str(perf_analyzer),
        "perf_analyzer_flags": {
            "measurement-mode": "count_windows", "measurement-request-count": 50, "stability-percentage": 300,
        },
        "run_config_search_disable": True,
        "concurrency": [1, 2],
        "profile_models": ["add_sub"],
    }  # fmt: skip
    (tmp_path / "profile.yml").write_text(json.dumps(settings))  # YAML has JSON within it
    command = [str(analyzer), "profile", "-f", str(tmp_path / "profile.yml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)

    log = (tmp_path / "server.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    with open(tmp_path / "results/results/metrics-model-inference.csv") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["Concurrency"] for row in rows) == ["1", "2"]
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)
    assert list((tmp_path / "results/reports/summaries/add_sub").glob("result_summary.*"))
    assert "all requests answered, all models unloaded" in log
