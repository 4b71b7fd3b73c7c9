"""The network of an ONNX file as a module of torch, for the operators that EfficientNet-Lite0 has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from tests.packs.pytorch import torch_models

import torch  # isort: skip

Attributes = Mapping[str, Any]


def _convolution(attributes: Attributes, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    padded = torch.nn.functional.pad(x, (left, right, top, bottom))
    strides, groups = attributes.get("strides", (1, 1)), attributes.get("group", 1)
    return torch.nn.functional.conv2d(padded, *weights, stride=strides, groups=groups)


OPERATORS: Mapping[str, Callable[..., torch.Tensor]] = {
    "Add": lambda _, a, b: a + b,
    "Mul": lambda _, a, b: a * b,
    "Clip": lambda _, x, low, high: x.clamp(low, high),
    "Conv": _convolution,
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdim=True),
    "Softmax": lambda attributes, x: x.softmax(attributes["axis"]),
}


class Network(torch.nn.Module):
    """Computes the nodes of a graph one after the other."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.first, self.last = graph.input[0].name, graph.output[0].name
        self.nodes = [(node.op_type, [*node.input], node.output[0], _attributes(node)) for node in graph.node]
        for tensor in graph.initializer:
            self.register_buffer(_plain(tensor.name), torch.from_numpy(numpy_helper.to_array(tensor).copy()))

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        values = {self.first: picture}
        for kind, names, output, attributes in self.nodes:
            given = [values[name] if name in values else self.get_buffer(_plain(name)) for name in names]
            values[output] = OPERATORS[kind](attributes, *given)
        return values[self.last]


def _attributes(node: onnx.NodeProto) -> Attributes:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def _plain(name: str) -> str:
    """Return a name without dots, which a buffer may not have."""
    return name.replace(".", "_")


def write(source: Path, script: Path, exported: Path, compiled: Path) -> None:
    """Write the network of an ONNX file as TorchScript, as an exported program, and compiled by AOTInductor."""
    network, example = Network(source).eval(), torch.zeros(1, 3, 224, 224)
    torch_models.save_script(network, script, example)
    torch_models.save_exported(network, exported, [example])
    torch_models.save_compiled(network, compiled, [example])
