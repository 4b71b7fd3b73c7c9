"""The sandbox of workers: the places that it closes, and the warnings where it cannot."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_serve.config.settings.server import parse_argv
from edge_serve.workers.launch import landlock
from edge_serve.workers.launch.interpreter import Interpreter, own_interpreter
from edge_serve.workers.launch.sandbox import Sandbox


def sandbox_of(*flags: str, **environ: str) -> Sandbox | None:
    return Sandbox.of(parse_argv(["--model-repository=/models", *flags], {}), environ)


def test_keys_sockets_credentials_and_state_are_protected(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch()
    flags = ("--http-server-key=/keys/http", "--admin-socket=/run/x/admin.sock", f"--token-file={tmp_path / 'tokens'}")

    found = sandbox_of(*flags, CREDENTIALS_DIRECTORY="/run/credentials/x", STATE_DIRECTORY="/var/lib/x:/var/lib/x/home")

    assert found is not None
    assert set(map(str, found.closed)) == {
        "/keys/http", "/run/x/admin.sock", "/run/credentials/x", str(tmp_path / "tokens"),
    }  # fmt: skip
    assert found.state == (Path("/var/lib/x"),)
    assert found.repositories == (Path("/models"),)


def test_the_sandbox_can_be_switched_off() -> None:
    assert sandbox_of("--worker-sandbox=false") is None


def test_the_worker_of_one_model_reads_its_own_engine_alone() -> None:
    plan, sandbox = Path("/cache/engines/a.plan"), Sandbox(engines=Path("/cache/engines"))

    def rules(own: list[Path] | None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = json.loads(sandbox.confine(own_interpreter(), own).command[-1])
        return found

    alone = rules([Path("/models/m"), plan])
    assert alone["closed"] == ["/cache/engines"]
    assert str(plan) in alone["readable"]
    assert alone["own"] == ["/models/m"]
    assert rules([Path("/models/m"), Path("/cache/engines")])["own"] == ["/models/m", "/cache/engines"], "a build"
    several = rules(None)
    assert several["closed"] == ["/cache/engines"]
    assert "/cache/engines" in several["readable"], "it can change none: a plan is code"


def test_a_models_interpreter_is_confined_by_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries are for that interpreter alone: ours would load them before it is confined."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    theirs = Interpreter(("/env/bin/python", "launcher.py"), {"LD_LIBRARY_PATH": "/env/lib", "A": "b"})

    found = Sandbox().confine(theirs, [Path("/models/m")], Path("/env"))

    assert found.command[:4] == (sys.executable, "-I", "-S", landlock.__file__)
    assert found.command[5:] == theirs.command
    assert found.variables == {"A": "b"}
    assert json.loads(found.command[4])["variables"] == {"LD_LIBRARY_PATH": "/env/lib"}


def test_our_interpreter_confines_itself_before_the_worker_begins() -> None:
    own = own_interpreter()

    found = Sandbox().confine(own, None)

    assert found.command[: len(own.command)] == own.command
    assert found.command[len(own.command)] == landlock.__name__
    assert json.loads(found.command[-1])["repositories"] == [], "of several models"


@pytest.mark.skipif(landlock.version() < landlock.OLDEST, reason="this kernel has no Landlock")
def test_files_that_cuda_opens_are_open_to_a_worker(tmp_path: Path) -> None:
    """Drivers from 570 on write the names of their threads, and CUDA fails with error 304 when that is refused."""
    home, models = tmp_path / "home", tmp_path / "models"
    for place in (home, models / "m", models / "other", tmp_path / "state"):
        place.mkdir(parents=True)
    sandbox = sandbox_of(f"--model-repository={models}", f"--state-directory={tmp_path / 'state'}")
    assert sandbox is not None
    rules = sandbox.confine(own_interpreter(), [models / "m"]).command[-1]
    script = """
import os, pathlib, tempfile, threading
pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("cuda-EvtHandlr")
pathlib.Path(os.environ["HOME"], ".nv/ComputeCache").mkdir(parents=True)
tempfile.TemporaryFile(dir="/dev/shm").write(b"x")
os.close(os.memfd_create("cuda"))
os.close(os.open("/dev/null", os.O_RDWR))
print(sorted(os.listdir("/proc/driver"))[:0], len(os.listdir("/sys/bus")) > 0)
"""
    command = [sys.executable, "-I", "-S", landlock.__file__, rules, sys.executable, "-I", "-c", script]

    done = subprocess.run(command, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[] True\n", "")


def test_a_kernel_without_landlock_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)

    Sandbox().log_gaps()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "this kernel has no Landlock" in caplog.text


def test_a_key_in_a_readable_directory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    path = Path("/tmp") / f"edge-serve-test-{os.getpid()}.key"
    path.touch()
    try:
        Sandbox(closed=(path, Path("/tmp/no-such-key"))).log_gaps()
    finally:
        path.unlink()

    assert f"models can read {path}" in caplog.text
    assert "no-such-key" not in caplog.text
