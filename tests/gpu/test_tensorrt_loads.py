"""Many loads of TensorRT models on a real GPU, failed ones among them: what they took is released."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tests.gpu.test_onnxruntime import KEPT, LOADS, SHARED, nvidia_smi, reload
from tests.server.running import running

SIZE = 512
BUILD = 'parameters { key: "EDGE_SERVE_BUILD_ENGINE" value { string_value: "true" } }\n'


def write(root: Path, name: str) -> Path:
    """Write a model whose engine is built at its first load. Return its version directory."""
    of = (onnx_models.FLOAT, ("N", SIZE))
    onnx_models.save(root / name / "1" / "model.onnx", [onnx_models.node("Tanh", ["X"], ["Y"])], {"X": of}, {"Y": of})
    config = f'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group {{ kind: KIND_GPU }}\n{SHARED}{BUILD}'
    (root / name / "config.pbtxt").write_text(config)
    return root / name / "1"


@pytest.mark.timeout(600)
def test_loads_and_failed_loads_leave_the_device_memory_flat(tmp_path: Path) -> None:
    """Failed: a plan that is cut off, and a configuration that the engine refuses after it was loaded."""
    if importlib.util.find_spec("tensorrt") is None:
        pytest.skip("tensorrt is not installed")
    models = tmp_path / "models"
    for name in ("stays", "again", "refused"):
        write(models, name)
    broken = write(models, "broken")
    (broken / "model.onnx").unlink()
    (broken / "model.plan").write_bytes(b"ftrt" + bytes(1000))
    config = models / "broken" / "config.pbtxt"
    config.write_text(config.read_text().replace(BUILD, ""))
    config = models / "refused" / "config.pbtxt"
    config.write_text(config.read_text() + 'input { name: "NOPE" data_type: TYPE_FP32 dims: [ 512 ] }\n')
    cache = f"--backend-config=tensorrt,engine-cache={tmp_path / 'cache'}"
    flags = ("--model-control-mode=explicit", "--load-model=stays", cache)
    with running(f"--model-repository={models}", *flags) as server:
        for name, expected in (("again", 200), ("refused", 400), ("broken", 400)):
            reload(server, name, expected)
        workers, before = server.workers(), nvidia_smi("memory.used")
        for _ in range(LOADS):
            for name, expected in (("again", 200), ("refused", 400), ("broken", 400)):
                reload(server, name, expected)
        assert server.workers() == workers
        assert nvidia_smi("memory.used") - before < KEPT
