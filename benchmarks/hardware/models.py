"""The measured models: the networks of `make_models` with a free batch size, and their configurations."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.make_models import make
from benchmarks.peer import CACHE
from edge_serve.backends.tensorrt.plan import meta_path

NAMES = ("squeezenet", "resnet50")
MAX_BATCH = 16
SHAPE = (3, 224, 224)
_BATCHING = f"max_batch_size: {MAX_BATCH}\ndynamic_batching {{ }}\n"


def onnx_file(name: str) -> Path:
    """Return a model with inputs FP32[N,3,224,224] and seeded random weights."""
    path = CACHE / "models-batched" / name / "model.onnx"
    if not path.exists():
        model = onnx.load(make() / f"{name}_random/1/model.onnx")
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
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = path.with_suffix(".stage")
        onnx.save(model, stage)
        stage.rename(path)
    return path


def ends(name: str) -> tuple[str, str]:
    """Return the names of a model's input and output."""
    graph = onnx.load(onnx_file(name)).graph
    weights = {tensor.name for tensor in graph.initializer}
    return next(one.name for one in graph.input if one.name not in weights), graph.output[0].name


def rows(count: int, seed: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return FP32[count,3,224,224]."""
    return np.random.default_rng(seed).random((count, *SHAPE), dtype=np.float32)


def write(repository: Path, name: str, kind: str, plan: Path | None = None, *, graphs: bool = False) -> None:
    """Write one model into a repository: its plan, or else its ONNX file.

    Args:
        kind: of the instance, GPU or CPU.
        graphs: with CUDA graphs.
    """
    version = repository / name / "1"
    version.mkdir(parents=True)
    platform = "onnxruntime_onnx" if plan is None else "tensorrt_plan"
    config = f'platform: "{platform}"\n{_BATCHING}instance_group {{ kind: KIND_{kind} }}\n'
    config += "optimization { cuda { graphs: true } }\n" if graphs else ""
    (repository / name / "config.pbtxt").write_text(config)
    if plan is None:
        shutil.copy(onnx_file(name), version / "model.onnx")
    else:
        shutil.copy(plan, version / "model.plan")
        shutil.copy(meta_path(plan), meta_path(version / "model.plan"))
