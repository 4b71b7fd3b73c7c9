"""A small model for each backend pack, and an inference with its right answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_serve.messages.tensors import Array
from tests.packs.environments import installed
from tests.packs.openvino.tensorflow_files import expected, graph

WEIGHTS = np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)
X = np.random.default_rng(8).normal(size=(1, 6)).astype(np.float32)

#: a network whose convolution and product are oneDNN's, which makes code at run time
_TORCH = """
import sys
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Conv1d(1, 8, 3), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.unsqueeze(1))).flatten(1))

network, x = Network().eval(), torch.tensor({x})
torch.jit.trace(network, x).save(sys.argv[1])
print(network(x).tolist()[0])
"""
_TORCH_CONFIG = """
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 6 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@dataclass(frozen=True, slots=True)
class PackModel:
    """A model of one pack.

    Attributes:
        files: path in the model's directory -> content
        tensor: name of the input, whose value is X
        answer: the numbers of its output
    """

    files: Mapping[str, bytes]
    tensor: str
    answer: Array


def openvino(folder: Path) -> PackModel:
    """Return a graph of TensorFlow, which needs no configuration."""
    return PackModel({"1/model.graphdef": graph(WEIGHTS)}, "x", expected(X, WEIGHTS))


def fil(folder: Path) -> PackModel:
    """Return a tree of XGBoost with one split, which needs no configuration."""
    leaf = 1.0 if X[0, 2] < 0.25 else -2.0
    return PackModel({"1/xgboost.json": json.dumps(_stump(2, 0.25, 1.0, -2.0)).encode()}, "input__0", np.array([leaf]))


def pytorch(folder: Path) -> PackModel:
    """Return a TorchScript model, which torch writes to `folder`. The test is skipped where torch is not installed."""
    script, file = _TORCH.replace("{x}", str(X.tolist())), folder / "model.pt"
    command = [str(installed("pytorch") / "venv/bin/python"), "-W", "ignore", "-c", script, str(file)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    files = {"1/model.pt": file.read_bytes(), "config.pbtxt": _TORCH_CONFIG.encode()}
    return PackModel(files, "x", np.array(answer))


MODELS: Mapping[str, Callable[[Path], PackModel]] = {"fil": fil, "openvino": openvino, "pytorch": pytorch}


def _stump(feature: int, threshold: float, left: float, right: float) -> dict[str, object]:
    """Return an XGBoost model: rows whose `feature` is less than `threshold` have the answer `left`."""
    tree = {
        "base_weights": [0.0, left, right], "categories": [], "categories_nodes": [], "categories_segments": [],
        "categories_sizes": [], "default_left": [0, 0, 0], "id": 0, "left_children": [1, -1, -1],
        "loss_changes": [1.0, 0.0, 0.0], "parents": [2147483647, 0, 0], "right_children": [2, -1, -1],
        "split_conditions": [threshold, left, right], "split_indices": [feature, 0, 0], "split_type": [0, 0, 0],
        "sum_hessian": [2.0, 1.0, 1.0],
        "tree_param": {"num_deleted": "0", "num_feature": "6", "num_nodes": "3", "size_leaf_vector": "1"},
    }  # fmt: skip
    booster = {
        "gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"},
        "iteration_indptr": [0, 1], "tree_info": [0], "trees": [tree],
    }  # fmt: skip
    learner = {
        "attributes": {}, "feature_names": [], "feature_types": [],
        "gradient_booster": {"name": "gbtree", "model": booster},
        "learner_model_param": {"base_score": "0", "num_class": "0", "num_feature": "6", "num_target": "1"},
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }  # fmt: skip
    return {"version": [2, 1, 0], "learner": learner}
