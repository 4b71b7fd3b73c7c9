#!/usr/bin/env python3
"""Makes the ONNX files of the quickstart models: `.venv/bin/python model_repository/make_models.py [FOLDER]`.

The files are a few hundred bytes each and committed, so that serving them needs no `onnx` package; this script
made them, and tests/model_repository/test_quickstart.py compares them. Needs `onnx`: `make test` installs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    sys.exit(f"make_models: {error}; the package onnx is needed: pip install onnx, or the .venv of `make test`")

#: old enough for every ONNX Runtime that edge-serve supports
IR_VERSION, OPSET = 8, 17


def make(
    name: str, element: int, inputs: dict[str, int], size: int, nodes: Sequence[onnx.NodeProto]
) -> onnx.ModelProto:
    """Make a model whose tensors are all [batch, size].

    Args:
        element: type of the outputs; OUTPUT, OUTPUT0, ... belong to INPUT, INPUT0, ...
        inputs: name -> element type.
    """

    def info(tensor: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor, kind, ["batch", size])

    outputs = sorted({output for node in nodes for output in node.output if output.startswith("OUTPUT")})
    graph = helper.make_graph(
        list(nodes), name, [info(*item) for item in inputs.items()], [info(output, element) for output in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def sum_and_difference(name: str, element: int) -> onnx.ModelProto:
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1 over 16 numbers, computed in INT32."""
    inputs = {"INPUT0": element, "INPUT1": element}
    if element == TensorProto.INT32:
        nodes = [node("Add", ["INPUT0", "INPUT1"], "OUTPUT0"), node("Sub", ["INPUT0", "INPUT1"], "OUTPUT1")]
    else:
        nodes = [
            node("Cast", ["INPUT0"], "a", to=TensorProto.INT32),
            node("Cast", ["INPUT1"], "b", to=TensorProto.INT32),
            node("Add", ["a", "b"], "sum"),
            node("Sub", ["a", "b"], "difference"),
            node("Cast", ["sum"], "OUTPUT0", to=element),
            node("Cast", ["difference"], "OUTPUT1", to=element),
        ]
    return make(name, element, inputs, 16, nodes)


def sequence() -> onnx.ModelProto:
    """OUTPUT = READY * (INPUT + START)."""
    int32 = TensorProto.INT32
    nodes = [node("Add", ["INPUT", "START"], "sum"), node("Mul", ["READY", "sum"], "OUTPUT")]
    return make("simple_sequence", int32, {"INPUT": int32, "START": int32, "READY": int32}, 1, nodes)


def dyna_sequence() -> onnx.ModelProto:
    """OUTPUT = READY * (INPUT + START + END * CORRID)."""
    int32 = TensorProto.INT32
    nodes = [
        node("Cast", ["CORRID"], "id", to=int32),
        node("Mul", ["END", "id"], "last"),
        node("Add", ["INPUT", "START"], "first"),
        node("Add", ["first", "last"], "sum"),
        node("Mul", ["READY", "sum"], "OUTPUT"),
    ]
    inputs = {"INPUT": int32, "START": int32, "READY": int32, "END": int32, "CORRID": TensorProto.UINT64}
    return make("simple_dyna_sequence", int32, inputs, 1, nodes)


def node(operation: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
    """Return a node with one output."""
    return helper.make_node(operation, inputs, [output], **attributes)


MODELS = {
    "simple": lambda: sum_and_difference("simple", TensorProto.INT32),
    "simple_int8": lambda: sum_and_difference("simple_int8", TensorProto.INT8),
    "simple_string": lambda: sum_and_difference("simple_string", TensorProto.STRING),
    "simple_sequence": sequence,
    "simple_dyna_sequence": dyna_sequence,
}


def main(folder: Path) -> None:
    """Write `<folder>/<model>/1/model.onnx` for each model."""
    for name, build in MODELS.items():
        path = folder / name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(build().SerializeToString(deterministic=True))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).parent
    parser.add_argument("folder", nargs="?", type=Path, default=beside, help="default: beside this script")
    main(parser.parse_args().folder)
