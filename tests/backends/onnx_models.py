"""Small ONNX models, made in a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_serve.messages.tensors import Array

Dims = Sequence[int | str | None]
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
FLOAT, HALF, INT32, STRING = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.STRING


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Mapping[str, tuple[int, Dims]],
    initializers: Mapping[str, Array] | None = None,
    initializers_are_inputs: bool = False,
) -> Path:
    """Write a model of these nodes."""
    made = [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()]
    found = [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()]
    if initializers_are_inputs:
        found += [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in made]
    given = [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()]
    graph = helper.make_graph(nodes, "test", found, given, made)
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """One node."""
    return helper.make_node(kind, inputs, outputs, **attributes)


def add_sub(path: Path, dims: Dims = ("N", 4), kind: int = INT32) -> Path:
    """SUM = A + B, DIFFERENCE = A - B."""
    nodes = [node("Add", ["A", "B"], ["SUM"]), node("Sub", ["A", "B"], ["DIFFERENCE"])]
    return save(path, nodes, {"A": (kind, dims), "B": (kind, dims)}, {"SUM": (kind, dims), "DIFFERENCE": (kind, dims)})


def quantized(path: Path) -> Path:
    """Y = X, rounded to halves, by a pair of Q-DQ nodes."""
    scale: dict[str, Array] = {"scale": np.array(0.5, np.float32), "zero": np.array(0, np.int8)}
    nodes = [node("QuantizeLinear", ["X", *scale], ["Q"]), node("DequantizeLinear", ["Q", *scale], ["Y"])]
    return save(path, nodes, {"X": (FLOAT, ("N", 4))}, {"Y": (FLOAT, ("N", 4))}, scale)


def identity(path: Path, kind: int = FLOAT, dims: Dims = ("N", None)) -> Path:
    """Y = X."""
    return save(path, [node("Identity", ["X"], ["Y"])], {"X": (kind, dims)}, {"Y": (kind, dims)})


def zip_map(path: Path) -> Path:
    """Return a model as `skl2onnx.to_onnx` makes it of a scikit-learn classifier by default."""
    labels, scores = ["X"], ["probabilities"]
    nodes = [
        node("LinearClassifier", labels, ["label", "probabilities"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2],
             coefficients=[0.1] * 12, intercepts=[0.0] * 3, multi_class=1, post_transform="SOFTMAX"),
        node("Identity", ["label"], ["output_label"]),
        node("ZipMap", scores, ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]  # fmt: skip
    of_float = helper.make_tensor_type_proto(FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, of_float))
    graph = helper.make_graph(
        nodes, "iris",
        [helper.make_tensor_value_info("X", FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("output_label", TensorProto.INT64, ["N"]),
         helper.make_value_info("output_probability", maps)],
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=9), path)
    return path
