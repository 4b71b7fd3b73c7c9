"""Which user runs a command: root leaves no file that the agent cannot read, and a stranger gets one sentence."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from ota.cli import main
from ota.commands import COMMANDS
from ota.layout import StateLayout
from tests.ota.bundles import serve

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes users")


def as_user(user: int, *arguments: str) -> tuple[int, str]:
    """Run a command in a process of its own; its exit status and what it complained."""
    importlib.import_module(f"ota.commands.{COMMANDS[arguments[0]]}")  # the user may not read the sources
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 99
        try:
            sys.stdout = sys.stderr = open(writing, "w", buffering=1)  # noqa: SIM115 (the process ends)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            status = main(arguments)
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def test_root_becomes_the_owner_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_OTA_CONFIG", "/nowhere")
    tmp_path.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    assert as_user(0, "pause", "--state-dir", str(state))[0] == 0
    assert {one.stat().st_uid for one in state.rglob("*")} == {NOBODY}
    assert as_user(NOBODY, "resume", "--state-dir", str(state))[0] == 0


def test_the_umask_of_root_does_not_count(layout: StateLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """edge-serve reads by its group, and the shell of root may have umask 077."""
    monkeypatch.setenv("EDGE_OTA_CONFIG", "/nowhere")
    os.umask(0o077)
    assert as_user(0, "pause", "--state-dir", str(layout.state_dir))[0] == 0
    assert {one.name: oct(one.stat().st_mode & 0o777) for one in (layout.pause, layout.history)} == {
        layout.pause.name: "0o640",
        layout.history.name: "0o640",
    }


@pytest.mark.parametrize("command", ["status", "history", "verify", "gc", "pause", "retry"])
def test_a_stranger_gets_one_sentence(
    layout: StateLayout, repository: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("EDGE_OTA_CONFIG", "/nowhere")
    serve(layout, repository)
    layout.state_dir.parent.chmod(0o755)
    status, text = as_user(NOBODY, command, "--state-dir", str(layout.state_dir), "--model-repository", str(repository))
    assert (status, text.count("\n")) == (5, 1), text
    assert "Permission denied; run edge-ota as root, or as the user that owns its state directory" in text


def test_boot_of_a_stranger_does_not_fail(
    layout: StateLayout, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_OTA_CONFIG", "/nowhere")
    serve(layout, repository)
    layout.state_dir.parent.chmod(0o755)
    status, text = as_user(NOBODY, "boot", "--state-dir", str(layout.state_dir), "--model-repository", str(repository))
    assert (status, "Permission denied" in text) == (0, True)
