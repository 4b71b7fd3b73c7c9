"""The units of trials and builds: an agent that ends, and a connection that systemd drops."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from ota.errors import NotHeld, ServerError
from ota.server.unit import ask_child, ask_unit
from tests.ota.server.units import accepting

KEY = "0" * 64


@pytest.mark.fault("C1")
@pytest.mark.parametrize("command", ["run-trial", "run-build"])
def test_a_unit_ends_with_the_agent_that_asked(tmp_path: Path, command: str) -> None:
    state, path, pid = tmp_path / "state", tmp_path / "unit.sock", tmp_path / "pid"
    program = tmp_path / "edge-serve"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new && mv {pid}.new {pid}\nsleep 60\n")
    program.chmod(0o755)
    trial = {"repository": f"{state}/trial/det", "models": ["det"], "limit": 60}
    build = {"onnx": f"{state}/releases/det/1/1/m", "key": KEY, "workspace_mb": 1, "options": [], "limit": 60}
    unit = [sys.executable, "-m", "ota", command, "--edge-serve", str(program), "--state-dir", str(state)]
    with accepting(path, ["env", f"STATE_DIRECTORY={tmp_path}", *unit]) as started:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(path))
            agent.sendall(json.dumps(trial if command == "run-trial" else build).encode() + b"\n")
            agent.shutdown(socket.SHUT_WR)
            wait_for(pid)
        assert started[0].wait(5) == ServerError.exit_status
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_agent_that_waits_gets_the_result_of_a_program_that_takes_its_time() -> None:
    agent, unit = socket.socketpair()
    with agent, unit, unit.makefile("wb") as caller:
        agent.shutdown(socket.SHUT_WR)
        assert ask_child(["sh", "-c", "sleep 0.7; echo done"], 9, caller)[:2] == (0, b"done\n")
        with pytest.raises(ServerError, match=r"did not end within 0.1 s and was killed"):
            ask_child(["sleep", "60"], 0.1, caller)


def test_a_connection_that_systemd_drops_costs_no_try(tmp_path: Path) -> None:
    """It accepts and closes those above MaxConnections, with the request unread."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "unit.sock"))
        listener.listen()
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(NotHeld, match=r"cannot be used: (Connection reset by peer|Broken pipe)"):
            ask_unit(str(tmp_path / "unit.sock"), {}, 9)
        thread.join()


def wait_for(path: Path) -> None:
    end = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
