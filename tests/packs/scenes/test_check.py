"""`edge-serve check` shows the tensors of a model under the names that its configuration has for them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from edge_serve.commands.check import run as check
from tests.packs.environments import backends_with
from tests.packs.fil.test_served import add_model
from tests.packs.openvino.tensorflow_files import graph
from tests.packs.pytorch import torch_models
from tests.packs.scenes.repository import FACES, PACKS, TORCH, model, tensors

import torch  # isort: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
INT8 = "INT8 1,16"
BY_PLACE = tensors(
    dict.fromkeys(("ARGS[2][option2]", "ARGS[1]", "ARGS[0]", "ARGS[2][option1]"), INT8),
    dict.fromkeys(("RESULT[AAA]", "RESULT[BBB][1]"), INT8),
)
BY_NUMBER = tensors({f"INPUT__{i}": INT8 for i in range(4)}, {"OUTPUT__0": INT8, "OUTPUT__5": "INT8 1,17"})
#: TensorFlow's full names, and a tensor inside the graph
GRAPH = 'platform: "tensorflow_graphdef" max_batch_size: 2\n' + tensors({"x:0": "FP32 6"}, {"product": "FP32 4"})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    one, two, three, four = torch.zeros(4, 1, 16, dtype=torch.int8).unbind()
    example = (one, two, {"option1": three, "option2": four})
    for name, face in (("by_place", BY_PLACE), ("by_number", BY_NUMBER)):
        path = model(root / "models", name, f'backend: "pytorch"\n{face}', "model.pt2")
        torch_models.save_exported(torch_models.Complex(), path, example)
    script = model(root / "models", "script", TORCH + FACES["pytorch"], "model.pt")
    torch_models.save_script(torch_models.AddSub(), script)
    model(root / "models", "graph", GRAPH, "model.graphdef").write_bytes(graph(np.ones((6, 4), np.float32)))
    add_model(root / "models", "forest", "xgboost_classes")
    for pack in PACKS:
        backends_with(pack, root / "backends")
    return root


@pytest.fixture(scope="module")
def found(root: Path) -> dict[str, list[str]]:
    """What the command prints about each model, blanks joined."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert check([f"--backend-directory={root / 'backends'}", "--infer", str(root / "models")]) == 1
    texts = re.split(r"^(?:ok|FAILED) +(\w+)", out.getvalue(), flags=re.MULTILINE)
    pairs = zip(texts[1::2], texts[2::2], strict=True)
    return {name: [re.sub(r" +", " ", line.strip()) for line in text.splitlines()] for name, text in pairs}


def test_tensors_have_the_names_of_the_configuration(found: dict[str, list[str]]) -> None:
    for name in ("ARGS[0]", "ARGS[1]", "ARGS[2][option1]", "ARGS[2][option2]"):
        assert f"input {name} TYPE_INT8 [1, 16] TYPE_INT8 [1, 16]" in found["by_place"]
    assert "output RESULT[BBB][1] TYPE_INT8 [1, 16] TYPE_INT8 [1, 16]" in found["by_place"]
    assert "output OUTPUT__1 - TYPE_INT8 [1, 16]" in found["by_place"], "one that the configuration leaves out"
    assert "input x:0 TYPE_FP32 [-1, 6] TYPE_FP32 [-1, 6]" in found["graph"]
    assert "output product TYPE_FP32 [-1, 4] TYPE_FP32 [-1, 4]" in found["graph"]
    assert "not in the model" not in str(found)


def test_a_difference_has_its_line(found: dict[str, list[str]]) -> None:
    line = "output OUTPUT__5 TYPE_INT8 [1, 17] TYPE_INT8 [1, 16] <- differs, see config.pbtxt line 7"
    assert line in found["by_number"]
    assert "write dims: [ 1, 16 ]" in str(found["by_number"])


def test_torchscript_is_compared_by_its_answer(found: dict[str, list[str]]) -> None:
    """Its file tells no types and shapes."""
    assert "OUTPUT__0 TYPE_FP32 [1, 12], OUTPUT__1 TYPE_FP32 [1, 12] in" in str(found["script"])


def test_a_forest_without_a_configuration(found: dict[str, list[str]]) -> None:
    assert "input input__0 - TYPE_FP32 [-1, 12]" in found["forest"]
    assert "4 of 5 models answer as their configuration says" in str(found)
