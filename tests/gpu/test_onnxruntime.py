"""ONNX models on a real GPU: answers, device memory over many loads, and metrics beside nvidia-smi."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.hardware import models, serving
from tests.server.running import Running, running

#: MiB that a driver may keep of what 50 loads used
KEPT = 64
LOADS = 50
#: one worker for all: memory that a worker keeps would be released with it
SHARED = 'parameters { key: "EDGE_SERVE_WORKER" value { string_value: "shared" } }\n'


@pytest.fixture(autouse=True)
def _cuda_provider() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is not installed")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", models.NAMES)
def test_answers_equal_those_of_the_cpu(name: str) -> None:
    assert serving.largest_difference(name, "GPU") < 1e-3


@pytest.mark.timeout(600)
def test_loads_and_failed_loads_leave_the_device_memory_flat(tmp_path: Path) -> None:
    models.write(tmp_path, "squeezenet", "GPU")
    with (tmp_path / "squeezenet" / "config.pbtxt").open("a") as config:
        config.write(SHARED)
    for name in ("stays", "broken"):
        shutil.copytree(tmp_path / "squeezenet", tmp_path / name)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--load-model=stays") as server:
        reload(server, "squeezenet", 200)
        workers, before = server.workers(), nvidia_smi("memory.used")
        for _ in range(LOADS):
            reload(server, "squeezenet", 200)
            reload(server, "broken", 400)
        assert server.workers() == workers
        assert nvidia_smi("memory.used") - before < KEPT


def test_metrics_agree_with_nvidia_smi(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit") as server:
        page = server.get("/metrics", server.metrics)[1].decode()
        for metric, query, unit in (
            ("nv_gpu_memory_total_bytes", "memory.total", 1 << 20),
            ("nv_gpu_power_limit", "power.limit", 1),
        ):
            found = re.search(rf"^{metric}\{{[^}}]*\}} (\S+)", page, re.MULTILINE)
            assert found, metric
            assert float(found[1]) == pytest.approx(nvidia_smi(query) * unit, rel=0.05)


def reload(server: Running, name: str, expected: int) -> None:
    assert server.post(f"/v2/repository/models/{name}/load")[0] == expected
    assert server.post(f"/v2/repository/models/{name}/unload")[0] == 200


def nvidia_smi(query: str) -> float:
    """Return one figure of the first GPU: MiB, or watts."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not installed")
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
