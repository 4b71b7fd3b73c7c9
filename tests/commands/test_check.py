"""The settings of backends that `edge-serve check` uses: those of its command line, else those of the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edge_serve import cli

RTX = "tensorrt,library=tensorrt_rtx"
VARIABLE = "EDGE_SERVE_BACKEND_CONFIG"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The settings that the child process of `--as` gets; commands run as if by root."""
    given: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        given[:] = [text.partition("=")[2] for text in command if text.startswith("--backend-config=")]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    return given


def test_the_variable_of_the_server_is_the_default(monkeypatch: pytest.MonkeyPatch, child: list[str]) -> None:
    monkeypatch.setenv(VARIABLE, f"{RTX};default-max-batch-size=2")
    assert cli.main(["check", "--as=nobody", "models"]) == 0
    assert child == [RTX, "default-max-batch-size=2"]

    assert cli.main(["check", "--as=nobody", "--backend-config=default-max-batch-size=3", "models"]) == 0
    assert child == ["default-max-batch-size=3"]


def test_the_engine_cache_of_the_server_is_left_alone(monkeypatch: pytest.MonkeyPatch, child: list[str]) -> None:
    monkeypatch.setenv(VARIABLE, f"tensorrt,engine-cache=/c;{RTX};tensorrt,engine-cache-mb=9;engine-cache=/d")
    assert cli.main(["check", "--as=nobody", "models"]) == 0
    assert child == [RTX]

    assert cli.main(["check", "--as=nobody", "--backend-config=tensorrt,engine-cache=/c", "models"]) == 0
    assert child == ["tensorrt,engine-cache=/c"]


def test_another_user_gets_whole_paths_of_plugins(child: list[str], tmp_path: Path) -> None:
    setting = "--backend-config=tensorrt,plugins=./a.so; sub/b.so;/c.so;libd.so"
    assert cli.main(["check", "--as=nobody", setting, "models"]) == 0
    assert child == [f"tensorrt,plugins={tmp_path}/a.so;{tmp_path}/sub/b.so;/c.so;libd.so"]


def test_a_variable_that_cannot_be_read_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "tensorrt")
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path)])

    assert ended.value.code == 2
    assert f"Bad environment variable \"{VARIABLE}\": found 'tensorrt'" in capsys.readouterr().err


def test_a_misspelt_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--backend-config=tensorrt,libary=tensorrt_rtx", str(tmp_path)]) == 1
    assert "--backend-config=tensorrt,libary is accepted and ignored" in capsys.readouterr().err
