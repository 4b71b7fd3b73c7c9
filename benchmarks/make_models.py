#!/usr/bin/env python3
"""Makes CNN-sized ONNX models for measuring: `python -m benchmarks.make_models [FOLDER]`. Needs the `onnx` package.

They are the light models of the `onnx` wheel (graphs without weights) filled with seeded random numbers: the work is
that of the real network, but the answers have no meaning.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.peer import CACHE

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
#: name -> file of the wheel
MODELS = {"squeezenet_random": "light_squeezenet.onnx", "resnet50_random": "light_resnet50.onnx"}
#: name -> its input
INPUTS = {"squeezenet_random": "data_0", "resnet50_random": "gpu_0/data_0"}
SEED = 20240624

_CONFIG = """# made by benchmarks/make_models.py: random weights, for measuring only
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: 0
input [ {{ name: "{input}" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
"""


def fill(model: onnx.ModelProto, seed: int = SEED) -> onnx.ModelProto:
    """Replace each ConstantOfShape node by an initializer of random weights, scaled so that activations stay finite."""
    generator = np.random.default_rng(seed)
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {
        node.output[0]: _weights(generator, node.output[0], [int(size) for size in shapes[node.input[0]]])
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    used_shapes = {node.input[0] for node in graph.node if node.op_type == "ConstantOfShape"}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    kept = [tensor for tensor in graph.initializer if tensor.name not in used_shapes]
    inputs = [value for value in graph.input if value.name not in shapes]
    filled = onnx.helper.make_graph(nodes, graph.name, inputs, list(graph.output), [*kept, *made.values()])
    result = onnx.helper.make_model(filled, opset_imports=list(model.opset_import), ir_version=8)
    onnx.checker.check_model(result)
    return result


def _weights(generator: np.random.Generator, name: str, shape: list[int]) -> onnx.TensorProto:
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 0
    # one-dimensional ones are biases, scales, means and variances; values near 1 suit all of them
    values = generator.normal(0, np.sqrt(2 / fan_in), shape) if fan_in else generator.uniform(0.9, 1.1, shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def make(folder: Path = CACHE / "models") -> Path:
    """Write the models that do not exist yet. Return the repository."""
    for name, file in MODELS.items():
        path = folder / name / "1/model.onnx"
        if not path.exists():
            model = fill(onnx.load(LIGHT / file))
            path.parent.mkdir(parents=True, exist_ok=True)
            stage = path.with_suffix(".stage")
            stage.write_bytes(model.SerializeToString())
            output = model.graph.output[0]
            dims = ", ".join(str(size.dim_value) for size in output.type.tensor_type.shape.dim)
            config = _CONFIG.format(name=name, input=model.graph.input[0].name, output=output.name, dims=dims)
            (folder / name / "config.pbtxt").write_text(config)
            stage.rename(path)
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])) if len(sys.argv) > 1 else make())
