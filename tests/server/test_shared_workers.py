"""Models that load at the start in the worker that they share, one of which ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.running import running
from tests.workers.harness import ECHO

#: loads for a second, and ends its process meanwhile if its parameter says so
BACKEND = (
    ECHO.read_text()
    + """

def _misbehave(deed: str) -> None:
    time.sleep(0.5)
    if deed == "exit":
        os._exit(9)
    time.sleep(0.5)
"""
)


@pytest.mark.slow
def test_only_the_model_that_ends_the_shared_worker_fails(tmp_path: Path) -> None:
    deeds = {"bad": "exit", "first": "", "second": ""}
    for name, deed in deeds.items():
        directory = tmp_path / name
        (directory / "1").mkdir(parents=True)
        (directory / "backend.py").write_text(BACKEND)
        text = f'backend: "echo" parameters {{ key: "on_open" value: {{ string_value: "{deed}" }} }}'
        pair = 'put { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        (directory / "config.pbtxt").write_text(f"{text}\nin{pair}out{pair}")
    with running(f"--model-repository={tmp_path}", "--exit-on-error=false", ready=False) as server:
        server.wait_for_log("failed to load 'bad' version 1: .*worker bad:1 ")
        server.wait_for_log("model first version 1 ready")
        server.wait_for_log("model second version 1 ready")
        index = json.loads(server.post("/v2/repository/index", {})[1])
        states = {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in index}
        assert states == {
            "bad": ("UNAVAILABLE", "Internal: worker bad:1 ended with exit status 9 while it loaded model 'bad'"),
            "first": ("READY", ""),
            "second": ("READY", ""),
        }
        assert server.log().count("it is loaded again in its own") == 3
