"""`make ota-demo`: it passes, and it cleans up when it passes, fails, and is stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "docs/examples/ota_demo.py"


@contextlib.contextmanager
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the demo with its directory below `tmp_path`."""
    with subprocess.Popen(
        [sys.executable, str(DEMO)], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as demo:  # fmt: skip
        try:
            yield demo
        finally:
            demo.terminate()


def processes_in(folder: Path) -> list[str]:
    """Return the processes whose working directory is below a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("L2", "R3")
def test_the_demo_passes_without_a_failed_request(tmp_path: Path) -> None:
    with started(tmp_path) as demo:
        out, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, out
    counts = re.findall(r"^clients: (\d+) requests answered \((.+)\), 0 failed$", out, re.MULTILINE)
    assert len(counts) == 2, out
    assert "by release 1" in counts[1][1]
    assert "by release 3" not in counts[1][1]
    assert "they must be equal" in out
    assert not list(tmp_path.iterdir())
    assert not processes_in(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_ends_all_and_removes_all(tmp_path: Path) -> None:
    with started(tmp_path) as demo:
        assert demo.stdout is not None
        while "simple 1: testing" not in (line := demo.stdout.readline()):
            assert line
        assert len(processes_in(tmp_path)) >= 4
        demo.send_signal(signal.SIGINT)
        out, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, out
    assert "ota-demo: stopped" in out
    until = time.monotonic() + 10
    while processes_in(tmp_path) and time.monotonic() < until:  # the worker of a trial sees its parent's end, and ends
        time.sleep(0.05)
    assert not processes_in(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def module() -> ModuleType:
    """The demo as a module."""
    spec = importlib.util.spec_from_file_location("ota_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_step_that_fails_fails_the_demo_with_its_reason(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "run", lambda demo: demo.ota("publish verify"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert module.main() == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    shown = capfd.readouterr()
    assert "ota-demo failed: 'edge-ota publish verify' ended with status" in shown.err
    assert not list(tmp_path.iterdir())
