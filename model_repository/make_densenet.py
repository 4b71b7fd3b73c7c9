"""Makes the ONNX file of `densenet_onnx`: EfficientNet-Lite0 with the inputs and outputs of Triton's quickstart model.

`fetch_models.py` calls `build` with the weights of PyTorch. The network follows M. Tan and Q. Le, "EfficientNet"
(arXiv 1905.11946), in its Lite0 form: no squeeze-and-excitation, ReLU6 in place of Swish, TensorFlow's padding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx_file import Graph
from torch_weights import Array

#: for each stage: blocks, kernel size, stride of the first block, expansion, channels
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))  # fmt: skip
#: epsilon of TensorFlow's batch normalisation, with which the network was trained
EPSILON = 1e-3
#: old enough for every ONNX Runtime that edge-serve supports
OPSET = 17

INPUT, OUTPUT, CLASSES = "data_0", "fc6_1", 1000


def build(weights: Mapping[str, Array]) -> bytes:
    """Return the ONNX file: a picture [1, 3, 224, 224] with values from -1 to 1 in, probabilities [1, 1000, 1, 1] out.

    Raises:
        KeyError: a weight is missing.
    """
    network = _Network(weights)
    graph = network.graph
    # the network wants (v - 127) / 128 of the bytes v of a picture; the scaling INCEPTION of Triton's image_client.py
    # gives v / 127.5 - 1
    scale = graph.weights("scale", np.array(127.5 / 128, np.float32))
    shift = graph.weights("shift", np.array(0.5 / 128, np.float32))
    x = graph.node("Mul", [INPUT, scale], "scaled")
    x = graph.node("Add", [x, shift], "shifted")
    x, size = network.convolution(x, 224, "_conv_stem", "_bn0", stride=2)
    number = 0
    for blocks, kernel, stride, expansion, _ in STAGES:
        for block in range(blocks):
            x, size = network.block(x, size, f"_blocks.{number}", kernel, 1 if block else stride, expansion)
            number += 1
    x, _ = network.convolution(x, size, "_conv_head", "_bn1")
    x = graph.node("GlobalAveragePool", [x], "pooled")
    # a fully connected layer is a convolution of 1 x 1 here, so that the output has the rank that Triton's model has
    fully = graph.weights("fc.weight", weights["_fc.weight"][:, :, None, None])
    x = graph.node("Conv", [x, fully, graph.weights("fc.bias", weights["_fc.bias"])], "scores")
    graph.node("Softmax", [x], OUTPUT, axis=1)
    return graph.model({INPUT: (1, 3, 224, 224)}, {OUTPUT: (1, CLASSES, 1, 1)}, OPSET)


class _Network:
    """Adds layers to a graph, each with the batch normalisation that follows it folded into its weights."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.graph = Graph("efficientnet_lite0")
        self._weights = weights
        self._limits = [self.graph.weights(f"limit.{value}", np.array(value, np.float32)) for value in (0, 6)]

    def block(self, x: str, size: int, name: str, kernel: int, stride: int, expansion: int) -> tuple[str, int]:
        """Add an inverted residual block (MBConv); return its output, and the output's height and width."""
        before = x
        if expansion > 1:
            x, size = self.convolution(x, size, f"{name}._expand_conv", f"{name}._bn0")
        x, size = self.convolution(x, size, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, depthwise=True)
        x, size = self.convolution(x, size, f"{name}._project_conv", f"{name}._bn2", activation=False)
        channels = self._weights[f"{name}._project_conv.weight"].shape[0]
        if stride == 1 and channels == self._channels_into(name, expansion):
            x = self.graph.node("Add", [x, before], f"{name}.sum")
        return x, size

    def _channels_into(self, name: str, expansion: int) -> int:
        first = "_expand_conv" if expansion > 1 else "_depthwise_conv"
        shape = self._weights[f"{name}.{first}.weight"].shape
        return int(shape[1] if expansion > 1 else shape[0])

    def convolution(
        self, x: str, size: int, name: str, norm: str, *, stride: int = 1, depthwise: bool = False,
        activation: bool = True,
    ) -> tuple[str, int]:  # fmt: skip
        """Add a convolution and ReLU6; return its output, and the output's height and width."""
        raw = self._weights[f"{name}.weight"].astype(np.float64)
        gamma, beta, mean, variance = (
            self._weights[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gamma / np.sqrt(variance + EPSILON)
        weight = self.graph.weights(f"{name}.weight", (raw * factor[:, None, None, None]).astype(np.float32))
        bias = self.graph.weights(f"{name}.bias", (beta - mean * factor).astype(np.float32))
        kernel, after = raw.shape[2], -(-size // stride)
        padding = max((after - 1) * stride + kernel - size, 0)  # TensorFlow's "same" padding: an odd pixel is last
        left, right = padding // 2, padding - padding // 2
        x = self.graph.node(
            "Conv", [x, weight, bias], f"{name}.out", kernel_shape=(kernel, kernel), strides=(stride, stride),
            pads=(left, left, right, right), group=raw.shape[0] if depthwise else 1,
        )  # fmt: skip
        if activation:
            x = self.graph.node("Clip", [x, *self._limits], f"{name}.relu6")
        return x, after
