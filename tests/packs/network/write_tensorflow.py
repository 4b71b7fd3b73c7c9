"""Writes the network of an ONNX file as SavedModel, frozen graph, and TensorFlow Lite, with TensorFlow itself.

Runs in the environment that `libraries` makes: `python write_tensorflow.py NETWORK DIRECTORY`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import tensorflow as tf
from onnx import helper, numpy_helper
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

Tensor = Any


class Network:
    """Computes the nodes of a graph one after the other, with the channels last."""

    def __init__(self, path: Path) -> None:
        graph = onnx.load(path).graph
        self.first, self.last, self.steps = graph.input[0].name, graph.output[0].name, list(graph.node)
        self.weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}

    def compute(self, data_0: Tensor) -> dict[str, Tensor]:
        values = {self.first: tf.transpose(data_0, [0, 2, 3, 1])}
        for node in self.steps:
            attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            values[node.output[0]] = self._result(node.op_type, values, list(node.input), attributes)
        return {self.last: tf.transpose(values[self.last], [0, 3, 1, 2])}

    def _result(
        self, kind: str, values: Mapping[str, Tensor], names: list[str], attributes: Mapping[str, Any]
    ) -> Tensor:
        x, others = values[names[0]], [values[name] if name in values else self.weights[name] for name in names[1:]]
        match kind:
            case "Add" | "Mul":
                return x + others[0] if kind == "Add" else x * others[0]
            case "Clip":
                return tf.nn.relu6(x)
            case "GlobalAveragePool":
                return tf.reduce_mean(x, [1, 2], keepdims=True)
            case "Softmax":
                return tf.nn.softmax(x, axis=3)
            case "Conv":
                return _convolution(x, others[0], others[1], attributes)
        raise ValueError(f"no operator {kind}")


def _convolution(x: Tensor, weight: Any, bias: Any, attributes: Mapping[str, Any]) -> Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    strides = attributes.get("strides", (1, 1))
    padded = tf.pad(x, [[0, 0], [top, bottom], [left, right], [0, 0]])
    if attributes.get("group", 1) == 1:
        y = tf.nn.conv2d(padded, weight.transpose(2, 3, 1, 0), strides=strides, padding="VALID")
    else:
        kernel = weight.transpose(2, 3, 0, 1)
        y = tf.nn.depthwise_conv2d(padded, kernel, strides=[1, *strides, 1], padding="VALID")
    return tf.nn.bias_add(y, bias)


def main(network: str, directory: str) -> None:
    """Write the three; the Lite file last, which says that all are there."""
    module, place = tf.Module(), Path(directory)
    picture = tf.TensorSpec([1, 3, 224, 224], tf.float32, name="data_0")
    module.compute = tf.function(Network(Path(network)).compute, input_signature=[picture])
    saved = str(place / "model.savedmodel")
    tf.saved_model.save(module, saved, signatures={"serving_default": module.compute})
    frozen = convert_variables_to_constants_v2(module.compute.get_concrete_function())
    (place / "model.graphdef").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    (place / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_saved_model(saved).convert())


if __name__ == "__main__":
    main(*sys.argv[1:])
