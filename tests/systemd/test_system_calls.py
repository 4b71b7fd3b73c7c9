"""The processes that the server starts make no system call that the units forbid."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_serve.engines.request import EngineRequest
from tests.backends import onnx_models
from tests.devices import stand_in
from tests.server.running import python_model, running
from tests.server.test_engine_builds import ask, write
from tests.systemd.restrictions import SYSTEMD
from tests.systemd.system_calls import allowed, lists

ROOT = Path(__file__).parents[2]
SERVER = "edge-serve.service"
#: those that build engines, too
OTHERS = ("edge-ota-build@.service", "edge-ota-trial@.service")


def prefix() -> list[str]:
    """Return the start of a command that makes the system calls of the server's unit only."""
    if shutil.which("systemd-analyze") is None or ctypes.util.find_library("seccomp") is None:
        pytest.skip("no systemd-analyze, or no libseccomp")
    return [sys.executable, "-m", "tests.systemd.system_calls", SERVER]


def test_lists_apply_in_their_order() -> None:
    groups = {"@default": {"brk"}, "@wide": {"read", "nice", "mlock"}, "@narrow": {"nice", "mlock"}}

    assert allowed(["@wide", "~@narrow", "mlock"], groups) == {"brk", "read", "mlock"}


def test_units_that_build_engines_allow_what_the_server_s_allows() -> None:
    """So the other tests hold for them, too."""
    assert all(lists(SYSTEMD / unit) == lists(SYSTEMD / SERVER) for unit in OTHERS)


def test_build_of_an_engine_starts(tmp_path: Path) -> None:
    """Its first report comes after its preparations, and before it imports TensorRT."""
    request = EngineRequest(str(tmp_path / "model.onnx"), str(tmp_path), str(tmp_path), 0, library="no_such_module")
    command = [*prefix(), sys.executable, "-m", "edge_serve.engines.child", str(os.getpid())]

    done = subprocess.run(command, input=request.to_json(), capture_output=True, timeout=60)

    assert json.loads(done.stdout.splitlines()[0])["phase"] == "loading TensorRT", done.stderr


@pytest.mark.slow
def test_server_builds_an_engine_and_serves_it_beside_other_models(tmp_path: Path) -> None:
    """So it starts the probe of the devices, a worker of each kind, and the process that builds."""
    models = tmp_path / "models"
    write(models, "built")
    python_model(models, "python")
    onnx_models.add_sub(models / "onnx/1/model.onnx", ("N", 4), onnx_models.FLOAT)
    library = stand_in.build(tmp_path)
    there = [
        *stand_in.prefix(library, devices=1),
        f"PYTHONPATH={ROOT}/tests/stand_ins:{ROOT}",
        f"CACHE_DIRECTORY={tmp_path}",
    ]

    with running(f"--model-repository={models}", prefix=[*there, *prefix()]) as server:
        assert ask(server, "built") == [11, 12, 13, 14, 15, 16, 17, 18]
        assert server.add_sub("python")[0] == 200
        assert server.get("/v2/models/onnx/ready")[0] == 200
        log = server.log()

    assert "the engine was built in" in log
    assert "not permitted" not in log
