"""Figures of the documentation come from recorded results, and only `--record` changes those."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import report, run, tables
from benchmarks.report import ROOT, SCRATCH, Report


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
    row = {"connections": 1, "ratio": 2.0, "lowest": 1.9, "highest": 2.1, "edge-serve p99 us": 400.0}
    Report("onnx_peer", "", [{"model": "m", **row, "triton p99 us": 12_000.0}]).write(tmp_path)
    monkeypatch.setattr(tables, "last", lambda name: report.last(name, tmp_path))

    page = tables.fill("a\n<!-- figures: onnx_peer -->\nold\n<!-- end of figures -->\nb\n")

    assert "| `m` | 1 | 2.00 (1.90 to 2.10) | 0.40 ms | 12 ms |" in page
    assert "old" not in page
    with pytest.raises(KeyError):
        tables.fill("<!-- figures: nowhere -->\n<!-- end of figures -->\n")
