"""Workers that cannot be started again delay neither other requests, nor their own unloading, nor the server's stop."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.running import ADD_SUB_CONFIG, Running, python_model, running
from tests.workers.venvs import make_environment

#: seconds that an immediate action may take on a busy machine
AT_ONCE = 10.0


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]


def rename_environment(server: Running, root: Path) -> None:
    (root / "environment").rename(root / "renamed")


def allow_no_descriptor(server: Running, root: Path) -> None:
    """Leave descriptors for a few connections, too few for a worker."""
    most = max(int(fd) for fd in os.listdir(f"/proc/{server.process.pid}/fd"))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most + 2, most + 2))


CAUSES: dict[str, Callable[[Running, Path], None]] = {
    "the environment was renamed": rename_environment,
    "no descriptor is left": allow_no_descriptor,
}


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        ("the environment was renamed", "SIGTERM"),
        pytest.param("no descriptor is left", "unload", marks=pytest.mark.slow),
        pytest.param("the environment was renamed", "unload", marks=pytest.mark.slow),
        pytest.param("no descriptor is left", "SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_cannot_be_started_delays_nothing(tmp_path: Path, cause: str, end: str) -> None:
    environment = make_environment(tmp_path / "environment")
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{environment}" }} }}'
    python_model(tmp_path / "models", "m", config=f"{ADD_SUB_CONFIG}{parameter}")
    python_model(tmp_path / "models", "other")
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with running(f"--model-repository={tmp_path / 'models'}", *flags) as server:
        assert server.add_sub("m")[0] == 200
        (worker,) = [pid for pid in server.workers() if command(pid) == str(environment / "bin/python")]
        CAUSES[cause](server, tmp_path)
        os.kill(worker, signal.SIGKILL)
        server.wait_for_log("cannot start worker m:1")

        assert server.add_sub("other")[0] == 200
        if end == "unload":
            began = time.monotonic()
            assert server.post("/v2/repository/models/m/unload")[0] == 200
            assert time.monotonic() - began < AT_ONCE
            assert server.get("/v2/health/live")[0] == 200
            assert server.add_sub("other")[0] == 200
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < AT_ONCE
        assert server.log().count("cannot start worker") < 10
        assert "Traceback" not in server.log()
