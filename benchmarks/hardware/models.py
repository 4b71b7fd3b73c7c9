"""The measured models: the networks of `make_models` with a free batch size, variants of them, and configurations.

A name is a network (`NAMES`) or a variant of ResNet-50:

resnet50-sizes    with inputs of any height and width
resnet50-places   with an output whose size the data decide
resnet50-N-times  computes N times as much, for a GPU on which no other one takes as long as on a small device
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.make_models import make
from benchmarks.peer import CACHE
from edge_serve.backends.tensorrt.plan import meta_path

NAMES = ("squeezenet", "resnet50")
SIZES, PLACES = "resnet50-sizes", "resnet50-places"
MAX_BATCH = 16
SHAPE = (3, 224, 224)
#: of SIZES: smallest, usual, and largest input
SHAPES = ((3, 64, 64), (3, 160, 160), (3, 320, 320))
#: ResNet-50's random weights let its logits grow to 12,000, whose softmax is the same for every input; this gives them
#: a standard deviation of 3, as SqueezeNet's have
_SHRINK = {"gpu_0/pred_w_0": 1 / 1150, "gpu_0/pred_b_0": 1 / 1150}
Rows = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
_BATCHING = f"max_batch_size: {MAX_BATCH}\ndynamic_batching {{ }}\n"
_NO_TF32 = (
    'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" '
    'parameters { key: "use_tf32" value: "0" } } } }\n'
)
#: a place is brighter; of random pixels one in 25 is, by the largest of four
_THRESHOLD = 0.99


def onnx_file(name: str) -> Path:
    """Return a model with inputs FP32[N,3,224,224] and seeded random weights."""
    path = CACHE / "networks" / name / "model.onnx"
    if not path.exists():
        model = _batched(onnx.load(make() / f"{name.partition('-')[0]}_random/1/model.onnx"))
        if name == SIZES:
            _free_sizes(model.graph)
        elif name == PLACES:
            _add_places(model.graph)
        elif found := re.fullmatch(r"resnet50-(\d+)-times", name):
            _repeat(model.graph, int(found[1]))
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = path.with_suffix(".stage")
        onnx.save(model, stage)
        stage.rename(path)
    return path


def _batched(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del graph.value_info[:]
    reshaped = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in reshaped:  # 0: as many rows as the input has
            sizes = numpy_helper.to_array(tensor).copy()
            sizes[0] = 0
            tensor.CopyFrom(numpy_helper.from_array(sizes, tensor.name))
        elif tensor.name in _SHRINK:
            shrunk = numpy_helper.to_array(tensor) * np.float32(_SHRINK[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(shrunk, tensor.name))
    return model


def _free_sizes(graph: onnx.GraphProto) -> None:
    dims = graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param, dims[3].dim_param = "H", "W"
    for index, node in enumerate(graph.node):
        if node.op_type == "AveragePool":
            graph.node[index].CopyFrom(helper.make_node("GlobalAveragePool", node.input, node.output))


def _add_places(graph: onnx.GraphProto) -> None:
    """Add the places of bright pixels, exact on every device, and fix the batch size to 1."""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    graph.initializer.append(numpy_helper.from_array(np.array(_THRESHOLD, np.float32), "threshold"))
    pool = helper.make_node("MaxPool", [graph.input[0].name], ["brightest"], kernel_shape=[2, 2], strides=[2, 2])
    bright = helper.make_node("Greater", ["brightest", "threshold"], ["bright"])
    graph.node.extend([pool, bright, helper.make_node("NonZero", ["bright"], ["places"])])
    graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, [4, "M"]))


def _repeat(graph: onnx.GraphProto, times: int) -> None:
    """Run the network on so many multiples of the input, which no optimizer joins, and return the mean."""
    kept = {"", *(tensor.name for tensor in graph.initializer)}
    source, result, nodes = graph.input[0].name, graph.output[0].name, list(graph.node)
    del graph.node[:]
    for turn in range(times):
        factor = numpy_helper.from_array(np.array(1 - turn / (2 * times), np.float32), f"factor{turn}")
        graph.initializer.append(factor)
        graph.node.append(helper.make_node("Mul", [source, factor.name], [f"{source}/{turn}"]))
        for node in nodes:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = [one if one in kept else f"{one}/{turn}" for one in node.input]
            copy.output[:] = [one and f"{one}/{turn}" for one in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array(1 / times, np.float32), "share"))
    graph.node.append(helper.make_node("Sum", [f"{result}/{turn}" for turn in range(times)], ["total"]))
    graph.node.append(helper.make_node("Mul", ["total", "share"], [result]))


def ends(name: str) -> tuple[str, list[str]]:
    """Return the names of a model's input and outputs."""
    graph = onnx.load(onnx_file(name)).graph
    weights = {tensor.name for tensor in graph.initializer}
    return next(one.name for one in graph.input if one.name not in weights), [one.name for one in graph.output]


def shapes(name: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a row that a model is compared with; the middle one is measured."""
    return SHAPES if name == SIZES else (SHAPE,)


def measured(name: str) -> tuple[int, ...]:
    """Return the shape of a row that a model is measured with."""
    return shapes(name)[len(shapes(name)) // 2]


def rows(count: int, seed: int = 1, shape: tuple[int, ...] = SHAPE) -> Rows:
    """Return FP32[count, *shape]."""
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


def write(
    repository: Path, name: str, kind: str, plan: Path | None = None, *, graphs: bool = False, tf32: bool = True
) -> None:
    """Write one model into a repository: its plan, or else its ONNX file.

    Args:
        kind: of the instance, GPU or CPU.
        graphs: with CUDA graphs.
        tf32: ONNX Runtime may round the operands of FP32 products to 10 bits, its default on a GPU.
    """
    version = repository / name / "1"
    version.mkdir(parents=True)
    platform = "onnxruntime_onnx" if plan is None else "tensorrt_plan"
    config = f'platform: "{platform}"\n{_BATCHING if name != PLACES else _alone(plan is None)}'
    config += f"instance_group {{ kind: KIND_{kind} }}\n"
    config += "optimization { cuda { graphs: true } }\n" if graphs else ""
    config += _NO_TF32 if plan is None and kind == "GPU" and not tf32 else ""
    (repository / name / "config.pbtxt").write_text(config)
    if plan is None:
        shutil.copy(onnx_file(name), version / "model.onnx")
    else:
        shutil.copy(plan, version / "model.plan")
        shutil.copy(meta_path(plan), meta_path(version / "model.plan"))


def _alone(onnxruntime: bool) -> str:
    """Return a configuration without batches. TensorRT fills in the type of the places: its version decides it."""
    source, (scores, places) = ends(PLACES)
    dims = ", ".join(map(str, (1, *SHAPE)))
    return (
        f'input {{ name: "{source}" data_type: TYPE_FP32 dims: [ {dims} ] }}\n'
        f'output {{ name: "{scores}" data_type: TYPE_FP32 dims: [ 1, 1000 ] }}\n'
        f'output {{ name: "{places}" {"data_type: TYPE_INT64 " * onnxruntime}dims: [ 4, -1 ] }}\n'
    )
