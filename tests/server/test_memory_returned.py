"""Memory of the front end: for each idle model, and after large requests."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.backends.onnx_models import identity
from tests.server.running import Running, python_model, running
from tests.server.test_loop import CONFIG, ECHO, Scene

MIB = 1 << 20
MODELS = 100
#: says that it is ready when it is asked for the first time, and nothing the second time
IS_READY = """
    def is_ready(self):
        CALLS.append(1)
        time.sleep(60 * (len(CALLS) - 1))
        return True
"""


def resident(server: Running) -> int:
    """Bytes of the front end that are in memory, shared ones as well."""
    for line in Path(f"/proc/{server.process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no figure")


def onnx_models(root: Path, count: int) -> str:
    for i in range(count):
        (root / f"m{i}/1").mkdir(parents=True)
        identity(root / f"m{i}/1/model.onnx")
        (root / f"m{i}/config.pbtxt").write_text('backend: "onnxruntime"')
    return f"--model-repository={root}"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_idle_model_costs_the_front_end_50_kilobytes_at_most(tmp_path: Path) -> None:
    found = []
    for count in (1, MODELS + 1):
        with running(onnx_models(tmp_path / str(count), count), "--memory-admission=false") as server:
            time.sleep(1)
            found.append(resident(server))
    assert (found[1] - found[0]) / MODELS <= 50_000, found


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize("mib", [100, 500])
def test_three_seconds_after_five_large_requests_the_memory_is_back(tmp_path: Path, mib: int) -> None:
    python_model(tmp_path / "models", "echo", ECHO, CONFIG)
    flags = (f"--model-repository={tmp_path}/models", "--allow-grpc=true", "--grpc-port=0")
    with running(
        *flags, f"--tensor-memory-bytes={12 * mib * MIB}", f"--request-memory-bytes={6 * mib * MIB}"
    ) as server:
        scene = Scene(server, tmp_path)
        scene.infer("echo", 2 * MIB)
        time.sleep(3)
        before = resident(server)
        clients = [threading.Thread(target=scene.infer, args=("echo", mib * MIB)) for _ in range(5)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        time.sleep(3)
        assert resident(server) - before <= 20 * MIB


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_model_whose_is_ready_hangs_delays_no_other_housekeeping(tmp_path: Path) -> None:
    hangs = ECHO.replace("\n\nclass", "\nimport time\n\nCALLS = []\n\nclass") + IS_READY
    python_model(tmp_path / "models", "hangs", hangs, CONFIG)
    python_model(tmp_path / "models", "echo", ECHO, CONFIG)
    with running(f"--model-repository={tmp_path}/models", "--allow-grpc=true", "--grpc-port=0") as server:
        scene = Scene(server, tmp_path)
        time.sleep(2)  # the second question hangs
        before = resident(server)
        for _ in range(2):
            scene.infer("echo", 40 * MIB)
            time.sleep(3)
            assert resident(server) - before <= 20 * MIB
