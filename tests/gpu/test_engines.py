"""Engines that a load builds with the TensorRT of this machine: answers, the cache, and outputs of any size."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
from onnx import TensorProto

from tests.backends import onnx_models
from tests.server.running import Running, running

GROUP = 'platform: "tensorrt_plan"\ninstance_group { kind: KIND_GPU }\n'
SIZE = 512
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
WEIGHTS: Array = np.random.default_rng(1).random((SIZE, SIZE), dtype=np.float32) / SIZE


@pytest.fixture(autouse=True)
def _tensorrt() -> None:
    if importlib.util.find_spec("tensorrt") is None:
        pytest.skip("tensorrt is not installed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """Yield a server with models whose engines are built at load, into an empty cache."""
    models = tmp_path / "models"
    for name, options in (("single", "true"), ("again", "true"), ("half", "--fp16")):
        of = (onnx_models.FLOAT, ("N", SIZE))
        nodes = [onnx_models.node("MatMul", ["X", "W"], ["H"]), onnx_models.node("Tanh", ["H"], ["Y"])]
        onnx_models.save(models / name / "1" / "model.onnx", nodes, {"X": of}, {"Y": of}, {"W": WEIGHTS})
        configure(models / name, options, "max_batch_size: 8\n")
    nodes = [onnx_models.node("NonZero", ["X"], ["Y"])]
    ends = {"X": (onnx_models.FLOAT, (SIZE,))}, {"Y": (TensorProto.INT64, (1, "M"))}
    onnx_models.save(models / "nonzero" / "1" / "model.onnx", nodes, *ends)
    inputs = f'input {{ name: "X" data_type: TYPE_FP32 dims: [ {SIZE} ] }}\n'
    configure(models / "nonzero", "true", f'{inputs}output {{ name: "Y" dims: [ 1, -1 ] }}\n')  # INT32 up to 8.6
    cache = f"--backend-config=tensorrt,engine-cache={tmp_path / 'cache'}"
    with running(f"--model-repository={models}", "--model-control-mode=explicit", cache) as found:
        yield found


def configure(model: Path, options: str, more: str) -> None:
    parameter = f'parameters {{ key: "EDGE_SERVE_BUILD_ENGINE" value {{ string_value: "{options}" }} }}\n'
    (model / "config.pbtxt").write_text(GROUP + more + parameter)


def ask(server: Running, model: str, values: Array) -> Array:
    one = http.InferInput("X", list(values.shape), "FP32")
    one.set_data_from_numpy(values)
    found: Array = http.InferenceServerClient(server.url).infer(model, [one]).as_numpy("Y")
    return found


def difference(server: Running, model: str, values: Array) -> float:
    """Return the largest difference between a model's answers and NumPy's."""
    return float(np.abs(ask(server, model, values) - np.tanh(values @ WEIGHTS)).max())


def quickest_load(server: Running, model: str, enough: float) -> float:
    """Return the seconds of a load, the least of several on a machine that is busy; `enough` needs no further one."""
    for _ in range(4):
        server.wait_for_log(f"model {model} version 1 ready in")
        seconds = min(map(float, re.findall(rf"model {model} version 1 ready in (\S+) s", server.log())))
        if seconds < enough:
            break
        server.post(f"/v2/repository/models/{model}/unload", {})
        server.post(f"/v2/repository/models/{model}/load", {})
    return seconds


@pytest.mark.timeout(600)
def test_built_engine_computes_the_model_and_the_second_load_is_quick(server: Running) -> None:
    values = np.random.default_rng(2).random((5, SIZE), dtype=np.float32)
    assert server.post("/v2/repository/models/single/load", {}) == (200, b"")
    server.wait_for_log(r"model single version 1: the engine was built in")
    assert difference(server, "single", values) < 1e-3

    assert server.post("/v2/repository/models/again/load", {}) == (200, b"")
    server.wait_for_log(r"model again version 1: the engine is in the cache")
    assert quickest_load(server, "again", 2) < 2


@pytest.mark.timeout(600)
def test_half_precision_is_within_one_hundredth(server: Running) -> None:
    values = np.random.default_rng(3).random((8, SIZE), dtype=np.float32)
    status, body = server.post("/v2/repository/models/half/load", {})
    if status != 200 and "from TensorRT 11" in str(json.loads(body)["error"]):
        pytest.skip("from TensorRT 11 the types in the ONNX file decide the precision")
    assert status == 200, body
    assert difference(server, "half", values) < 1e-2


@pytest.mark.timeout(600)
def test_output_whose_size_the_data_decide(server: Running) -> None:
    values = np.zeros(SIZE, np.float32)
    values[[3, 7, 500]] = 1
    assert server.post("/v2/repository/models/nonzero/load", {}) == (200, b"")
    assert ask(server, "nonzero", values).tolist() == [[3, 7, 500]]
