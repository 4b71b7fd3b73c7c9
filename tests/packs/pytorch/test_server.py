"""PyTorch models in a real server, whose worker runs with the interpreter of the pack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.packs.environments import backends_with
from tests.packs.pytorch import torch_models as models
from tests.server.running import Running, running

import torch  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(180)]

NETWORK = """
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
dynamic_batching { }
"""
BUMP = """
platform: "pytorch_libtorch"
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
#: Y = (X + 1) * 10 twice, one after the other: T is the output of the first, and the input of the second
TWICE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "T" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "bump" model_version: -1
    input_map { key: "INPUT__0" value: "X" } output_map { key: "OUTPUT__0" value: "T" } }
  step { model_name: "bump" model_version: -1
    input_map { key: "INPUT__0" value: "T" } output_map { key: "OUTPUT__0" value: "Y" } }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with good models, and bad ones beside them."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(19)
    network = models.Network().eval()
    models.save_script(network, root / "network/1/model.pt")
    (root / "network/config.pbtxt").write_text(NETWORK)
    models.save_script(models.Bump().eval(), root / "bump/1/model.pt")
    (root / "bump/config.pbtxt").write_text(BUMP)
    (root / "twice/1").mkdir(parents=True)
    (root / "twice/config.pbtxt").write_text(TWICE)
    batch = torch.export.Dim("batch", min=1, max=8)
    example = (torch.zeros(2, 4), torch.zeros(2, 4))
    shapes = {"dynamic_shapes": ({0: batch}, {0: batch})}
    models.save_exported(models.AddSub(), root / "bare/1/model.pt2", example, **shapes)  # without a configuration
    for name, data in (("onnx", bytes.fromhex("080a12076578706f72746572")), ("empty", b""), ("half", b"PK\x03\x04xx")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.pt").write_bytes(data)
        (root / name / "config.pbtxt").write_text(NETWORK)
    packs = backends_with("pytorch", tmp_path_factory.mktemp("backends"))
    arguments = (f"--model-repository={root}", f"--backend-directory={packs}", "--exit-on-error=false")
    with running(*arguments, limit=120) as started:
        started.network = network  # type: ignore[attr-defined]  # what the answers are compared with
        yield started


def infer(server: Running, model: str, **arrays: np.ndarray[Any, Any]) -> dict[str, Any]:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
    answer = json.loads(body)
    assert status == 200, answer
    return {one["name"]: np.array(one["data"]).reshape(one["shape"]) for one in answer["outputs"]}


def test_a_repository_as_in_tritons_examples_answers_as_torch_does(server: Running) -> None:
    image = torch.randn(2, 3, 20, 28)

    answer = infer(server, "network", INPUT__0=image.numpy())

    with torch.inference_mode():
        expected = server.network(image)  # type: ignore[attr-defined]
    np.testing.assert_allclose(answer["OUTPUT__0"], expected, rtol=0, atol=1e-5)


def test_an_exported_program_needs_no_configuration(server: Running) -> None:
    status, body = server.get("/v2/models/bare")
    assert status == 200
    assert [one["shape"] for one in json.loads(body)["inputs"]] == [[-1, 4], [-1, 4]]

    row = np.arange(4, dtype=np.float32)[None]
    answer = infer(server, "bare", INPUT__0=row, INPUT__1=row)
    assert answer["OUTPUT__1"].tolist() == (row * 2).tolist()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("onnx", 'is an ONNX model: name it model.onnx, and write backend: "onnxruntime"'),
        ("empty", "is empty (0 bytes): copy or export it again"),
        ("half", "is a damaged archive, or not all of one"),
    ],
)
def test_bad_files_are_told_and_the_others_serve(server: Running, model: str, text: str) -> None:
    _, body = server.post("/v2/repository/index")
    states = {entry["name"]: entry for entry in json.loads(body)}

    assert text in states[model]["reason"]
    assert states["network"]["state"] == states["bare"]["state"] == "READY"


def test_a_batch_that_torch_refuses_leaves_the_worker_alive(server: Running) -> None:
    inputs = [{"name": "INPUT__0", "datatype": "FP32", "shape": [1, 3, 0, 0], "data": []}]
    status, body = server.post("/v2/models/network/infer", {"inputs": inputs})
    assert (status, json.loads(body)["error"][:24]) == (500, "PyTorch execute failure:")

    assert infer(server, "network", INPUT__0=np.zeros((1, 3, 8, 8), np.float32))["OUTPUT__0"].shape == (1, 10)


@pytest.mark.parametrize("count", [4, 20_000])
def test_a_network_that_writes_to_its_input_does_not_change_it_for_others(server: Running, count: int) -> None:
    answer = infer(server, "twice", X=np.zeros(count, np.float32))
    assert [np.unique(answer[name]).tolist() for name in ("T", "Y")] == [[10], [110]]
