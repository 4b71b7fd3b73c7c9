"""Tensors and settings that a backend cannot have: each model says so, and the others are served."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.packs.environments import backends_with
from tests.packs.fil.test_served import add_model
from tests.packs.pytorch import torch_models
from tests.packs.scenes.client import infer
from tests.packs.scenes.repository import FIL, PACKS, ROWS, SCORES, TORCH, model, tensors
from tests.server.running import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, about scripts
]
OUTPUT = {"output__0": "FP32 4"}
#: of a forest: configuration, and the reason why it is refused
FORESTS = {
    **{
        f"forest_{kind.lower()}": (
            tensors({"input__0": f"{kind} 12"}, OUTPUT),
            f"incorrect type {called} for input with required type FP32; input 'input__0' is TYPE_{kind} in config",
        )
        for kind, called in {
            "STRING": "BYTES",
            "BOOL": "BOOL",
            "INT64": "INT64",
            "FP16": "FP16",
            "BF16": "BF16",
        }.items()
    },
    "forest_two_inputs": (
        tensors({"input__0": "FP32 12", "more": "FP32 1"}, OUTPUT),
        "expected one input, named 'input__0', and config.pbtxt has 'input__0', 'more'",
    ),
    "forest_other_output": (
        tensors({"input__0": "FP32 12"}, {**OUTPUT, "more": "FP32 1"}),
        "unexpected output 'more', expected 'output__0' and 'treeshap_output'",
    ),
    "forest_without_output": (
        tensors({"input__0": "FP32 12"}, {"scores": "FP32 4"}),
        "No output with name output__0 in configuration",
    ),
    "forest_width": (
        tensors({"input__0": "FP32 13"}, OUTPUT),
        "and the model has 12 features: write dims:",
    ),
}
#: of TorchScript, whose input and output have this type
SCRIPTS = {
    f"script_{kind.lower()}": (
        tensors({"INPUT__0": f"{kind} 3"}, {"OUTPUT__0": f"{kind} 3"}),
        f"unsupported datatype TYPE_{kind} for input 'INPUT__0' for model 'script_{kind.lower()}'",
    )
    for kind in ("UINT16", "UINT32", "UINT64")
}
SCRIPTS["script_texts_of_2_dimensions"] = (
    tensors({"INPUT__0": "STRING 2"}, {"OUTPUT__0": "STRING 2"}),
    "Triton only supports 1 dimensional List of String as input for 'INPUT__0'",
)


def test_refused_models_say_why_and_the_others_are_served(tmp_path: Path) -> None:
    root, backends = tmp_path / "models", tmp_path / "backends"
    for pack in PACKS:
        backends_with(pack, backends)
    for name, (config, _) in FORESTS.items():
        add_model(root, name, "xgboost_classes", FIL + config)
    for name, (config, _) in SCRIPTS.items():
        torch_models.save_script(torch_models.Identity(), model(root, name, TORCH + config, "model.pt"))
    add_model(root, "good", "xgboost_classes", FIL)
    arguments = (f"--model-repository={root}", f"--backend-directory={backends}", "--exit-on-error=false")
    with running(*arguments, limit=120) as server:
        index = json.loads(server.post("/v2/repository/index")[1])
        reasons = {one["name"]: one.get("reason", "") for one in index}
        wrong = {
            name: reasons[name] for name, (_, said) in (FORESTS | SCRIPTS).items() if not re.search(said, reasons[name])
        }
        assert wrong == {}
        assert infer(server, "good", {"input__0": ROWS})["output__0"] == pytest.approx(SCORES, abs=1e-6)
