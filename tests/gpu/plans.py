"""Plans of a real TensorRT as test data: `python -m tests.gpu.plans` builds them on this machine's GPU, a few MB.

Meant for TensorRT 8.6.0, the newest that lies on PyPI as a whole (docs/hardware.md says how to get it). Its
version-compatible plans run on the lean runtime of later versions. Each network is built plain and version-compatible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.backends import onnx_models

ROOT = Path(__file__).parents[2]
#: where plans are written and found; TEST_PLANS names another folder
FOLDER = Path(os.environ.get("TEST_PLANS") or Path(__file__).parent / "built")
CHANNELS, CLASSES, LENGTH = 8, 10, 64
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A plan.

    Attributes:
        network: its ONNX file.
        options: of `edge-serve build`.
        tolerance: the largest difference from ONNX Runtime on the CPU.
        shapes: of the inputs that it is asked with.
        config: of the model, besides the platform and the instance.
    """

    network: str
    options: tuple[str, ...]
    tolerance: float
    shapes: tuple[tuple[int, ...], ...]
    config: str = "max_batch_size: 8\n"


def _profile(*shapes: str) -> tuple[str, ...]:
    return tuple(f"--{side}-shapes=X:{shape}" for side, shape in zip(("min", "opt", "max"), shapes, strict=True))


_FIXED = _profile("1x3x16x16", "4x3x16x16", "8x3x16x16")
_ROWS: tuple[tuple[int, ...], ...] = ((1, 3, 16, 16), (8, 3, 16, 16))
CASES = {
    "single": Case("fixed", _FIXED, 1e-3, _ROWS),
    "half": Case("fixed", (*_FIXED, "--fp16"), 1e-2, _ROWS),
    "dynamic": Case("sizes", _profile("1x3x8x8", "4x3x16x16", "8x3x32x32"), 1e-3, ((1, 3, 8, 8), (3, 3, 32, 20))),
    "nonzero": Case(
        "nonzero", (), 0.0, ((LENGTH,),),
        f'input {{ name: "X" data_type: TYPE_FP32 dims: [ {LENGTH} ] }}\noutput {{ name: "Y" dims: [ 1, -1 ] }}\n',
    ),
}  # fmt: skip
COMPATIBLE = "-compatible"


def names() -> Iterator[str]:
    """Yield the name of each plan."""
    for name in CASES:
        yield from (name, name + COMPATIBLE)


def case(name: str) -> Case:
    """Return the case of a plan."""
    return CASES[name.removesuffix(COMPATIBLE)]


def values(shape: tuple[int, ...]) -> Array:
    """Return an input, of which half is zero."""
    made = np.random.default_rng(len(shape)).random(shape, dtype=np.float32)
    return np.where(made > 0.5, made, np.float32(0))


def network(name: str, path: Path) -> Path:
    """Write an ONNX file: a small CNN for inputs of 16 x 16 or of any size, or the places of numbers that are not 0."""
    if name == "nonzero":
        nodes = [onnx_models.node("NonZero", ["X"], ["Y"])]
        ends = {"X": (onnx_models.FLOAT, (LENGTH,))}, {"Y": (TensorProto.INT64, (1, "M"))}
        return onnx_models.save(path, nodes, *ends)
    random = np.random.default_rng(1)
    weights: dict[str, Array] = {
        "K": random.normal(0, 0.2, (CHANNELS, 3, 3, 3)).astype(np.float32),
        "W": random.normal(0, 0.3, (CHANNELS, CLASSES)).astype(np.float32),
        "SHAPE": np.array([0, CHANNELS], np.int64),
    }
    nodes = [
        onnx_models.node("Conv", ["X", "K"], ["C"], pads=[1, 1, 1, 1]), onnx_models.node("Relu", ["C"], ["R"]),
        onnx_models.node("GlobalAveragePool", ["R"], ["P"]), onnx_models.node("Reshape", ["P", "SHAPE"], ["F"]),
        onnx_models.node("MatMul", ["F", "W"], ["Y"]),
    ]  # fmt: skip
    dims: onnx_models.Dims = ("N", 3, "H", "V") if name == "sizes" else ("N", 3, 16, 16)
    found: onnx_models.Dims = ("N", CLASSES)
    return onnx_models.save(path, nodes, {"X": (onnx_models.FLOAT, dims)}, {"Y": (onnx_models.FLOAT, found)}, weights)


def expected(name: str, given: Array, folder: Path) -> Array:
    """Return what ONNX Runtime computes on the CPU."""
    import onnxruntime

    file = network(case(name).network, folder / f"{name}.onnx")
    session = onnxruntime.InferenceSession(file, providers=[("CPUExecutionProvider", {})])
    found: Array = session.run(None, {"X": given})[0]
    return found


def build(name: str, folder: Path) -> Path:
    """Build one plan, with its description beside it.

    Raises:
        RuntimeError: it is not built; the text says why.
    """
    path = folder / f"{name}.plan"
    with tempfile.TemporaryDirectory() as scratch:
        onnx = network(case(name).network, Path(scratch) / "model.onnx")
        command = [
            sys.executable, "-m", "edge_serve", "build", str(onnx), "--output", str(path), *case(name).options,
            "--cache", f"{scratch}/cache", *(["--version-compatible"] if name.endswith(COMPATIBLE) else []),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr or done.stdout).strip()[-500:]}")
    return path


def main() -> None:
    """Build all plans; those that cannot be built are named."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names():
        try:
            path = build(name, FOLDER)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            continue
        meta = json.loads(path.with_name(f"{path.name}.meta.json").read_text())
        print(
            f"{path}: {path.stat().st_size} bytes, TensorRT {meta['tensorrt']}, compute capability {meta['capability']}"
        )


if __name__ == "__main__":
    main()
