"""Networks as Python code (`runtime: "model.py"`), in a real server with the pack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.packs.environments import backends_with
from tests.packs.pytorch import torch_models as models
from tests.packs.pytorch.test_server import infer
from tests.server.running import Running, running

import torch  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # it compiles a network

NETWORK = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, values):
        return torch.relu(self.linear(values))

class ABlocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(4), Block(4))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, left, right):
        joined = self.dropout(self.blocks(left)) + right
        return joined, joined.sum(dim=1, keepdim=True)
"""
CONFIG = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 8
input [ { name: "LEFT" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "RIGHT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "JOINED" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
"""
ONE = """
backend: "pytorch"
runtime: "model.py"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
COMPILED = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{}" } }'
DOUBLE = "import torch\nclass Double(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
#: it writes into its parameters, reads a pickle of its own, and imports the file beside it
OWN = """
import torch
from settings import FACTOR

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))
        self.factor.mul_(FACTOR)
        self.shift = torch.load(__file__.replace("model.py", "shift.bin"), weights_only=False).value

    def forward(self, x):
        if x[0] == 0:
            raise KeyError("scale")
        return x * self.factor + self.shift
"""
#: model -> its model.py, and a part of the reason why it does not load
BAD = {
    "no_class": ("X = 1\n", "Cannot find a subclass of torch.nn.Module: model.py has to define one"),
    "no_code": ("import absent_module\n", "No module named 'absent_module'"),
    "arguments": (DOUBLE.replace("def forward", "def __init__(self, width): pass\n    def forward"), "width"),
    "other_weights": (DOUBLE, 'Unexpected key(s) in state_dict: "weight"'),
    "no_weights": (
        DOUBLE,
        "expected the weights of the class in model.py: torch.save(network.state_dict(), 'model.pt')",
    ),
    "no_tensors": (DOUBLE, "write input and output in config.pbtxt"),
    "alone": ("", "weights alone need the class of their network beside them, in model.py"),
    "compiles": (DOUBLE, "the parameter TORCH_COMPILE_OPTIONAL_PARAMETERS: "),
}


def put(root: Path, name: str, config: str, code: str = "") -> Path:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if code:
        (folder / "model.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(NETWORK, scope)
    torch.manual_seed(7)
    return scope["ABlocks"]().eval()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, reference: torch.nn.Module) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("networks")
    torch.save(reference.state_dict(), put(root, "network", CONFIG, NETWORK) / "model.pt")
    put(root, "double", ONE, DOUBLE)
    models.save_script(torch.nn.ReLU(), put(root, "script", ONE + COMPILED) / "model.pt")
    put(root, "scalar", ONE, DOUBLE.replace("x * 2", "3"))
    for name, (code, _) in BAD.items():
        put(root, name, ONE + (COMPILED.replace("{}", "{1") if name == "compiles" else ""), code)
    (root / "no_tensors/config.pbtxt").write_text('backend: "pytorch"\nruntime: "model.py"\n')
    torch.save({"weight": torch.zeros(1)}, root / "other_weights/1/model.pt")
    torch.save({"weight": torch.zeros(1)}, root / "alone/1/model.pt")
    (root / "no_weights/1/model.pt").write_bytes(b"PK")
    own = put(root, "own", ONE + 'parameters { key: "NUM_INTEROP_THREADS" value { string_value: "2" } }', OWN)
    (own / "settings.py").write_text("FACTOR = 3\n")
    torch.save(SimpleNamespace(value=1.0), own / "shift.bin")
    packs = backends_with("pytorch", tmp_path_factory.mktemp("backends"))
    arguments = (f"--model-repository={root}", f"--backend-directory={packs}", "--exit-on-error=false")
    with pytest.MonkeyPatch.context() as patch:  # the pack sets it in a process of tests that imports torch by it
        patch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
        with running(*arguments, limit=150) as started:
            yield started


def test_a_network_with_its_weights_answers_as_torch_does(server: Running, reference: torch.nn.Module) -> None:
    """Several requests share a batch, and each gets its own rows."""
    draw = np.random.default_rng(3)
    sent = [(draw.random((rows, 4), np.float32), draw.random((rows, 4), np.float32)) for rows in (1, 2, 3, 1)]
    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(lambda pair: infer(server, "network", LEFT=pair[0], RIGHT=pair[1]), sent))

    for pair, answer in zip(sent, answers, strict=True):
        with torch.no_grad():
            joined, total = reference(*map(torch.from_numpy, pair))
        np.testing.assert_allclose(answer["JOINED"], joined.numpy(), atol=1e-6)
        np.testing.assert_allclose(answer["SUM"], total.numpy(), atol=1e-6)
    assert "model.py has the classes ABlocks, Block: the first of these names is the network" in server.log()


def test_a_network_without_weights_and_a_script_answer(server: Running) -> None:
    values = np.array([-1, 2, 3], np.float32)
    assert infer(server, "double", X=values)["Y"].tolist() == [-2, 4, 6]
    assert infer(server, "script", X=values)["Y"].tolist() == [0, 2, 3]


def test_the_code_of_a_network_may_do_what_it_may_under_triton(server: Running) -> None:
    assert infer(server, "own", X=np.array([1, 2], np.float32))["Y"].tolist() == [4, 7]

    inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]
    status, body = server.post("/v2/models/own/infer", {"inputs": inputs})
    assert status == 500
    assert "KeyError: 'scale'" in json.loads(body)["error"]
    assert "own/1/model.py(14): forward" in json.loads(body)["error"]


def test_a_result_that_is_no_tensor_is_an_error_of_the_request(server: Running) -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]
    status, body = server.post("/v2/models/scalar/infer", {"inputs": inputs})
    assert status == 500
    assert "the network returns int, expected tensors, alone or in a tuple" in json.loads(body)["error"]
    assert infer(server, "double", X=np.ones(2, np.float32))["Y"].tolist() == [2, 2]


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_loaded_says_why(server: Running, name: str) -> None:
    found = {one["name"]: one for one in json.loads(server.post("/v2/repository/index")[1])}
    assert found[name]["state"] == "UNAVAILABLE"
    assert BAD[name][1] in found[name]["reason"]
    assert "Traceback" not in found[name]["reason"]
