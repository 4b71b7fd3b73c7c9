"""The models that the tests of all packs ask, and what they answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edge_serve.messages.tensors import Array
from tests.backends.onnx_models import FLOAT, STRING, add_sub, identity, node, save
from tests.packs.fil.libraries import need_models
from tests.packs.fil.test_served import add_model, case
from tests.packs.openvino.test_served import SEQUENCE as OPENVINO_SEQUENCE
from tests.packs.pytorch import torch_models as torch_models
from tests.server.running import python_model

import torch  # isort: skip

need_models()

PACKS = ("pytorch", "openvino", "fil")
#: with missing values, which are NaN; what a library says about them comes from the training
ROWS, SCORES = case("xgboost_classes", 3)
ROWS = ROWS.astype(np.float32)
SHAP = np.load(need_models() / "xgboost_classes/shap.npy")[:3]
ONES = np.ones_like(ROWS)
BATCHES = "max_batch_size: 8\n"
TORCH = f'platform: "pytorch_libtorch"\n{BATCHES}'
OPENVINO = f'backend: "openvino"\n{BATCHES}'
FIL = f'backend: "fil"\n{BATCHES}parameters {{ key: "predict_proba" value {{ string_value: "true" }} }}\n'


class Plain(NamedTuple):
    """A model of a pack, a request, and its answer."""

    model: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


PLAIN = {
    "pytorch": Plain("torch", {"INPUT0": ROWS, "INPUT1": ONES}, {"OUTPUT__0": ROWS - 1, "OUTPUT__1": ROWS + 1}),
    "openvino": Plain("openvino", {"A": ROWS, "B": ONES}, {"SUM": ROWS + 1, "DIFFERENCE": ROWS - 1}),
    "fil": Plain("forest", {"input__0": ROWS}, {"output__0": SCORES, "treeshap_output": SHAP}),
}


def tensors(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """Return the tensors of a configuration; each is a type, dims, and the rest: `FP32 3,-1 reshape { shape: [] }`."""
    lines = []
    for side, entries in (("input", inputs), ("output", outputs)):
        for name, text in entries.items():
            kind, dims, *more = text.split(maxsplit=2)
            lines.append(f'{side} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {" ".join(more)} }}\n')
    return "".join(lines)


FACES = {
    "pytorch": tensors({"INPUT0": "FP32 12", "INPUT1": "FP32 12"}, {"OUTPUT__0": "FP32 12", "OUTPUT__1": "FP32 12"}),
    "openvino": tensors({"A": "FP32 12", "B": "FP32 12"}, {"SUM": "FP32 12", "DIFFERENCE": "FP32 12"}),
    "fil": tensors({"input__0": "FP32 12"}, {"output__0": "FP32 4", "treeshap_output": "FP32 4,13"}),
}

HEADS = {"pytorch": TORCH, "openvino": OPENVINO, "fil": FIL}

#: asks the model that its configuration names, with its own inputs, for all outputs
CALLER = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.model = config["parameters"]["model"]["string_value"]
        self.outputs = [one["name"] for one in config["output"]]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name=self.model, requested_output_names=self.outputs, inputs=request.inputs())
        found = call.exec()
        if found.has_error():
            return pb_utils.InferenceResponse(error=found.error())
        return pb_utils.InferenceResponse(found.output_tensors())
"""
HALF = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("HALF", one / 2)]) for one in rows]
"""
BEST = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        scores = [pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy() for request in requests]
        best = [one.argmax(axis=1, keepdims=True).astype(np.int64) for one in scores]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("BEST", one)]) for one in best]
"""
#: half of X -> pytorch: half + half -> fil: scores of 4 classes -> openvino: scores + scores -> the best class
CHAIN = (
    ("half", {"X": "X"}, {"HALF": "half"}),
    ("torch", {"INPUT0": "half", "INPUT1": "half"}, {"OUTPUT__1": "rows"}),
    ("forest", {"input__0": "rows"}, {"output__0": "scores"}),
    ("twice", {"A": "scores", "B": "scores"}, {"SUM": "sums"}),
    ("best", {"SCORES": "sums"}, {"BEST": "BEST"}),
)
TEXT = "STRING 1 reshape { shape: [ ] }"
TYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64")
#: TorchScript's position of a control or a state is in its name
TORCH_SEQUENCE = """sequence_batching { %s
  control_input { name: "START__2" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY__3" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
  state { input_name: "STATE__1" output_name: "OUTPUT_STATE__1" data_type: TYPE_FP32 dims: [ 1 ] } }
"""
#: which Triton's backend of forests takes, too, and ignores
FOREST_SEQUENCE = """sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  state { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ] } }
"""
STRATEGIES = ("direct { }", "oldest { max_candidate_sequences: 4 }")


def write(root: Path) -> None:
    """Write all of them."""
    torch_models.save_script(torch_models.AddSub(), model(root, "torch", TORCH + FACES["pytorch"], "model.pt"))
    add_sub(model(root, "openvino", OPENVINO + FACES["openvino"], "model.onnx"), ("N", 12), FLOAT)
    add_model(root, "forest", "xgboost_classes", FIL + FACES["fil"])
    for pack, plain in PLAIN.items():
        (root / f"rows_of_{plain.model}").mkdir()
        (root / f"rows_of_{plain.model}/1").symlink_to(root / plain.model / "1")
        config = HEADS[pack].replace("max_batch_size: 8\n", "") + FACES[pack].replace("dims: [ ", "dims: [ -1, ")
        (root / f"rows_of_{plain.model}/config.pbtxt").write_text(config)
        called = f'parameters {{ key: "model" value {{ string_value: "{plain.model}" }} }}\n'
        python_model(root, f"caller_of_{plain.model}", CALLER, f'backend: "python"\n{BATCHES}{called}{FACES[pack]}')
    write_chain(root)
    write_tensors(root)
    write_sequences(root)


def model(root: Path, name: str, config: str, file: str) -> Path:
    """Write a configuration; the path where the model's file belongs."""
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    return root / name / "1" / file


def write_chain(root: Path) -> None:
    """Write an ensemble of all packs, between two steps of Python."""
    python = f'backend: "python"\n{BATCHES}'
    python_model(root, "half", HALF, python + tensors({"X": "FP32 12"}, {"HALF": "FP32 12"}))
    python_model(root, "best", BEST, python + tensors({"SCORES": "FP32 4"}, {"BEST": "INT64 1"}))
    add_sub(model(root, "twice", OPENVINO, "model.onnx"), ("N", 4), FLOAT)
    steps = "".join(
        f'step {{ model_name: "{name}" model_version: -1 '
        + " ".join(f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in reads.items())
        + " ".join(f' output_map {{ key: "{key}" value: "{value}" }}' for key, value in writes.items())
        + " }\n"
        for name, reads, writes in CHAIN
    )
    face = tensors({"X": "FP32 12"}, {"scores": "FP32 4", "BEST": "INT64 1"})
    model(root, "chain", f'platform: "ensemble"\n{BATCHES}{face}ensemble_scheduling {{ {steps} }}\n', "")


def write_tensors(root: Path) -> None:
    """Write models of PyTorch and OpenVINO for types, strings, dictionaries, and variable dimensions."""
    for kind in TYPES:
        face = tensors({"INPUT__0": f"{kind} 3"}, {"OUTPUT__0": f"{kind} 3"})
        path = model(root, f"torch_{kind.lower()}", TORCH + face, "model.pt")
        torch_models.save_script(torch_models.Identity(), path)
    texts = tensors({"texts": TEXT, "n": "FP32 1"}, {"OUTPUT__0": TEXT, "OUTPUT__1": "FP32 1"})
    torch_models.save_script(torch_models.Texts(), model(root, "torch_texts", TORCH + texts, "model.pt"))
    keyed = tensors({"right": "FP32 1", "left": "FP32 1"}, {"OUTPUT__0": "FP32 1"})
    torch_models.save_script(torch_models.Keyed(), model(root, "torch_keyed", TORCH + keyed, "model.pt"))
    keyed = tensors({"x": "FP32 1"}, {"half": "FP32 1", "twice": "FP32 1"})
    torch_models.save_script(torch_models.KeyedResult(), model(root, "torch_keyed_result", TORCH + keyed, "model.pt"))
    heights = tensors({"INPUT__0": "FP32 3,-1,8"}, {"OUTPUT__0": "FP32 3,-1,8"})
    torch_models.save_script(torch_models.Identity(), model(root, "torch_heights", TORCH + heights, "model.pt"))
    identity(model(root, "openvino_heights", OPENVINO, "model.onnx"), FLOAT, ("N", 3, None, 8))
    identity(model(root, "openvino_texts", OPENVINO, "model.onnx"), STRING, ("N", 2))


def write_sequences(root: Path) -> None:
    """Write models that add up the requests of a sequence in an implicit state, for both strategies."""
    for strategy in STRATEGIES:
        name = strategy.split()[0]
        face = tensors({"INPUT__0": "FP32 1"}, {"OUTPUT__0": "FP32 1"})
        path = model(root, f"torch_{name}", TORCH + face + TORCH_SEQUENCE % strategy, "model.pt")
        torch_models.save_script(torch_models.Running(), path)
        numbered = re.sub(r"(?:START|READY|STATE)__", "INPUT__", TORCH_SEQUENCE % strategy)
        numbered = numbered.replace("OUTPUT_INPUT__", "OUTPUT__")
        path = model(root, f"exported_{name}", f'backend: "pytorch"\n{BATCHES}{face}{numbered}', "model.pt2")
        shapes = {"dynamic_shapes": [{0: torch.export.Dim("batch", min=1, max=8)}] * 4}
        torch_models.save_exported(torch_models.Running(), path, torch.zeros(4, 2, 1).unbind(), **shapes)
        sequence = OPENVINO_SEQUENCE.replace("sequence_batching {", f"sequence_batching {{ {strategy}")
        nodes = [node("Add", ["X", "BEFORE"], ["AFTER"]), node("Identity", ["AFTER"], ["Y"])]
        row = (FLOAT, ("N", 1))
        path = model(root, f"openvino_{name}", f'backend: "openvino"\n{sequence}', "model.onnx")
        save(path, nodes, {"X": row, "BEFORE": row}, {"Y": row, "AFTER": row})
        sequence = FOREST_SEQUENCE.replace("{", f"{{ {strategy}", 1)
        add_model(root, f"forest_{name}", "xgboost_classes", FIL + FACES["fil"] + sequence)
