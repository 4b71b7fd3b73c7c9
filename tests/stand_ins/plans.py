"""Plans of the stand-in for TensorRT: how tests write them, and what they compute."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"STAND-IN PLAN\n"
#: TensorRT's name -> NumPy's; BF16 as its bits
DTYPES = {
    "FLOAT": "f4", "HALF": "f2", "INT8": "i1", "INT32": "i4", "BOOL": "?", "UINT8": "u1", "BF16": "u2", "INT64": "i8",
}  # fmt: skip

Arrays = Mapping[str, Any]


def _fail(inputs: Arrays) -> dict[str, Any]:
    raise RuntimeError("the kernel fails")


def _sized(inputs: Arrays) -> dict[str, Any]:
    """Return zeros of the shape that the shape tensor SIZE has as its values, and that shape."""
    shape = [max(0, int(n)) for n in inputs["SIZE"]]
    return {"OUTPUT0": np.zeros(shape, "f4"), "SHAPE": np.array(shape)}


def _stretched(inputs: Arrays) -> dict[str, Any]:
    """Return the first column of INPUT0 as often as SIZE says, and the shape of that."""
    zeros = _sized(inputs)
    return {**zeros, "OUTPUT0": zeros["OUTPUT0"] + inputs["INPUT0"][:, :1]}


def _breaks(inputs: Arrays) -> dict[str, Any]:
    """Return the inputs, and fail while the file that describes the driver (tests/devices/libcuda.cpp) says so."""
    if "broken=1" in Path(os.environ.get("STAND_IN_CUDA_FILE", os.devnull)).read_text():
        raise RuntimeError("the device is broken")
    return OPERATIONS["identity"](inputs)


#: op of a plan -> inputs to outputs, by name
OPERATIONS: dict[str, Callable[[Arrays], dict[str, Any]]] = {
    "identity": lambda inputs: {f"OUTPUT{name[5:]}": array for name, array in inputs.items()},
    "addsub": lambda inputs: {
        "OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"],
        "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"],
    },
    "rowsum": lambda inputs: {"OUTPUT0": inputs["INPUT0"].reshape(len(inputs["INPUT0"]), -1).sum(1, keepdims=True)},
    "segments": lambda inputs: {
        "OUTPUT0": np.array([[part.sum()] for part in np.split(inputs["INPUT0"], inputs["ENDS"])[:-1]], "f4")
    },
    "nonzero": lambda inputs: {"OUTPUT0": np.argwhere(inputs["INPUT0"]).T},
    "sized": _sized,
    "stretched": _stretched,
    "measured": lambda inputs: {"OUTPUT0": inputs["INPUT0"], "SHAPE": np.array(inputs["INPUT0"].shape)},
    "fail": _fail,
    "breaks": _breaks,
}


def operation(document: Mapping[str, Any]) -> Callable[[Arrays], dict[str, Any]]:
    """Return what a plan computes; one that was built from an ONNX file computes what ONNX Runtime does."""
    return _by_onnx(document["onnx"]) if document["op"] == "onnx" else OPERATIONS[document["op"]]


@functools.cache
def _by_onnx(content: str) -> Callable[[Arrays], dict[str, Any]]:
    import onnxruntime  # the plans of most tests need none

    session = onnxruntime.InferenceSession(base64.b64decode(content), providers=[("CPUExecutionProvider", {})])
    names = [one.name for one in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def tensor(name: str, mode: str, dtype: str, shape: Sequence[int], **more: Any) -> dict[str, Any]:
    """Describe a tensor: mode INPUT or OUTPUT; more: format, shape_tensor, vectorized_dim, components."""
    return {"name": name, "mode": mode, "dtype": dtype, "shape": list(shape), **more}


def plan(
    op: str,
    tensors: Sequence[Mapping[str, Any]],
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]],
    version: str = "10.3.0",
    capability: str = "8.7",
    **more: Any,
) -> bytes:
    """Return a plan; a profile has (min, opt, max) of each input, values instead of shapes of shape tensors."""
    document = {
        "op": op, "tensors": list(tensors), "profiles": list(profiles), "version": version, "capability": capability,
        **more,
    }  # fmt: skip
    return MAGIC + json.dumps(document).encode()
