"""`python -m benchmarks.run --beside CHECKOUT`: another state of the code in the place of Triton."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import run, servers
from benchmarks.report import ROOT


def test_server_of_another_checkout_takes_the_place_of_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").symlink_to(ROOT)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(servers, "BESIDE", str(tmp_path / "other"))
    with servers.edge_serve(tmp_path / "models") as ours, servers.triton(tmp_path / "models") as theirs:
        paths = [Path(f"/proc/{server.pid}/environ").read_bytes() for server in (ours, theirs)]

    assert [ours.name, theirs.name] == ["edge-serve", "beside"]
    assert [f"PYTHONPATH={tmp_path}/other".encode() in path for path in paths] == [False, True]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--beside", ".", "--record"], "--record writes figures beside Triton"),
        (["--beside", "nowhere"], "no checkout of edge-serve"),
    ],
    ids=["record", "no checkout"],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", *flags])
    with pytest.raises(SystemExit):
        run.main()
    assert expected in capsys.readouterr().err
