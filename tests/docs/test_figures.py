"""Figures of the documentation come from recorded results, and only `--record` changes those."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from benchmarks import load, report, run, servers, tables
from benchmarks.report import ROOT, SCRATCH, Report
from benchmarks.servers import Server


def measured(name: str) -> Report:
    return Report(name, "how many?", [{"n": 1}])


@pytest.mark.parametrize(("flags", "folder"), [([], "scratch"), (["--record"], "results")], ids=["run", "record"])
def test_only_record_writes_the_committed_results(
    flags: list[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(run, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(run, "measure", measured)
    monkeypatch.setattr("sys.argv", ["run", *flags, "start_time"])

    run.main()

    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert json.loads((tmp_path / folder / "start_time.json").read_text())["rows"] == [{"n": 1}]
    assert "start_time: how many?" in (tmp_path / folder / "README.md").read_text()


def test_git_ignores_results_that_are_not_recorded() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", str(SCRATCH)], cwd=ROOT, check=False)

    assert ignored.returncode == 0


def test_a_table_is_made_from_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "connections": 1,
        "ratio": 2.0,
        "lowest": 1.9,
        "highest": 2.1,
        "edge-serve p99 us": 400.0,
        "edge-serve CPU us": 130.0,
    }
    Report("onnx_peer", "", [{"model": "m", **row, "triton p99 us": 12_000.0}]).write(tmp_path)
    monkeypatch.setattr(tables, "last", lambda name: report.last(name, tmp_path))

    page = tables.fill("a\n<!-- figures: onnx_peer -->\nold\n<!-- end of figures -->\nb\n")

    assert "| `m` | 1 | 2.00 (1.90 to 2.10) | 0.40 ms | 12 ms | 0.13 ms |" in page
    assert "| CPU per request |\n" in page, "a column without a figure is left out"
    assert "old" not in page
    with pytest.raises(KeyError):
        tables.fill("<!-- figures: nowhere -->\n<!-- end of figures -->\n")


def test_the_short_list_is_made_from_the_results() -> None:
    assert re.search(
        r"as a multiple of Triton's:\n  \d\.\d\d to \d\.\d\d for Python models over HTTP,\n", tables.in_short()
    )


@dataclass
class FakeServer:
    """A server that needs `cost` seconds of processor time for each request."""

    name: str
    cost: float
    requests: int = 1000

    def answered(self, model: str) -> int:
        assert model == "m"
        return self.requests

    def cpu_seconds(self) -> float:
        return 5.0 + self.requests * self.cost


def test_processor_time_per_request_is_that_of_the_measurement() -> None:
    def measure(server: Server) -> tuple[float, float]:
        cast(FakeServer, server).requests += 500
        return 100.0, 2000.0

    ours, theirs = cast(Server, FakeServer("edge-serve", 0.0004)), cast(Server, FakeServer("triton", 0.0005))
    row = load.versus(ours, theirs, measure, 3, "m")

    assert row["edge-serve CPU us"] == pytest.approx(400)
    assert row["triton CPU us"] == pytest.approx(500)
    assert row["CPU ratio"] == pytest.approx(0.8)
    assert "CPU ratio" not in load.versus(ours, theirs, measure, 1)


def test_processor_time_is_that_of_a_process_and_its_children() -> None:
    # Twice what is waited for: the kernel counts user and system time in whole ticks, each rounded down.
    burn = "import sys, time\nwhile time.process_time() < 0.2: pass\nsys.stdin.read()"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {burn!r}])\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        end = time.monotonic() + 20
        while (found := servers.cpu_seconds(process.pid)) < 0.1 and time.monotonic() < end:
            time.sleep(0.01)
        own = sum(os.times()[:2])
        process.kill()

    assert 0.1 <= found < 10
    assert servers.cpu_seconds(os.getpid()) >= own - 0.1


def test_the_table_of_processor_time_states_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "last", lambda name: report.last(name, tmp_path))
    figures = {"p99 us": 900.0, "CPU us": 250.0}
    row = {f"{server} {name}": value for server in ("edge-serve", "triton") for name, value in figures.items()}
    row |= {"ratio": 1.0, "lowest": 1.0, "highest": 1.0, "CPU ratio": 0.97}
    made = Report("processor_time", "", [{"door": "http", "requests/s": 3000, **row}])
    made.notes.append("took 200 s; load 0.4 before, 1.9 at the end")
    made.write(tmp_path)

    page = tables.fill("<!-- figures: processor_time -->\nold\n<!-- end of figures -->\n")
    assert "| HTTP, 3,000 a second | 0.97 | 0.90 ms | 0.90 ms | 0.25 ms | 0.25 ms |" in page
    assert "Load of the machine: 0.4 before, 1.9 at the end." in page
