"""Many builds in one process, over the stand-in for TensorRT: prints each outcome as JSON. Run by `test_builder`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_serve.backends.tensorrt.library import load_library
from edge_serve.engines.child import build_engine
from edge_serve.engines.options import parse_options
from edge_serve.engines.request import EngineRequest
from edge_serve.errors import EdgeServeError
from tests.backends import onnx_models

FOLDER = Path(sys.argv[1])
LIBRARY = load_library()


def request(name: str, options: str = "--opt-shapes=A:2x4,B:2x4", **more: Any) -> EngineRequest:
    onnx = FOLDER / name
    cache = str(FOLDER / "cache")
    return replace(
        EngineRequest(str(onnx), str(FOLDER), cache, 10**9, model="m", options=parse_options(options, "a case")), **more
    )


def change() -> None:
    """Put another model in the place of one."""
    onnx_models.add_sub(FOLDER / "add.onnx", ("M", 4), onnx_models.FLOAT)


def outcome(asked: EngineRequest, script: str = "", meanwhile: Callable[[], object] = tuple) -> dict[str, Any]:
    os.environ["STAND_IN_BUILD"] = script
    told: list[Any] = []

    def tell(**fields: Any) -> None:
        told.append((fields["phase"], fields["percent"]))
        if fields["phase"] == "parsing":
            meanwhile()

    try:
        built = build_engine(asked, LIBRARY, tell)
    except EdgeServeError as error:
        return {"error": error.message, "kind": type(error).__name__}
    plan = json.loads(Path(built.plan).read_bytes().partition(b"\n")[2])
    return {
        "cached": built.cached, "flags": built.flags, "profiles": built.profiles, "told": told, "bytes": built.bytes,
        "workspace": plan["workspace"], "plan_flags": plan["flags"], "dla_core": plan["dla_core"], "key": built.key,
    }  # fmt: skip


def main() -> None:
    """Print the outcome of each case."""
    onnx_models.add_sub(FOLDER / "add.onnx", ("N", 4), onnx_models.FLOAT)
    onnx_models.add_sub(FOLDER / "half.onnx", ("N", 4), onnx_models.HALF)
    (FOLDER / "broken.onnx").write_bytes((FOLDER / "add.onnx").read_bytes()[:-30])
    onnx_models.zip_map(FOLDER / "zip_map.onnx")
    onnx_models.quantized(FOLDER / "quantized.onnx")
    (FOLDER / "file").touch()
    shapes = "--opt-shapes=A:2x4,B:2x4"
    found = {
        "memory": outcome(request("add.onnx"), "ends=memory"),
        "implementation": outcome(request("add.onnx"), "ends=implementation"),
        "plain": outcome(request("add.onnx")),
        "again": outcome(request("add.onnx")),
        "other shapes": outcome(request("add.onnx", "--opt-shapes=A:3x4,B:3x4")),
        "fp16": outcome(request("add.onnx", f"{shapes} --fp16")),
        "fp16 of the file": outcome(request("half.onnx", f"{shapes} --fp16")),
        "bf16": outcome(request("add.onnx", f"{shapes} --bf16")),
        "best": outcome(request("add.onnx", f"{shapes} --best")),
        "int8": outcome(request("add.onnx", f"{shapes} --int8")),
        "quantized best": outcome(request("quantized.onnx", "--opt-shapes=X:2x4 --best")),
        "quantized int8": outcome(request("quantized.onnx", "--opt-shapes=X:2x4 --int8")),
        "compatible": outcome(request("add.onnx", f"{shapes} --version-compatible --hardware-compatible")),
        "no tf32": outcome(request("add.onnx", f"{shapes} --no-tf32")),
        "large workspace": outcome(request("add.onnx", f"{shapes} --workspace-mb=700")),
        "too large workspace": outcome(request("add.onnx", f"{shapes} --workspace-mb=100000")),
        "small workspace": outcome(request("add.onnx", f"{shapes} --workspace-mb=16")),
        "dla": outcome(request("add.onnx", f"{shapes} --dla-core=1 --version-compatible")),
        "no dla": outcome(request("add.onnx", f"{shapes} --dla-core=2")),
        "no device": outcome(request("add.onnx", device=7)),
        "broken": outcome(request("broken.onnx")),
        "missing": outcome(request("missing.onnx")),
        "unsupported": outcome(request("zip_map.onnx", "--opt-shapes=X:1x4")),
        "no shapes": outcome(request("add.onnx", "")),
        "cache in a file": outcome(request("add.onnx", cache=str(FOLDER / "file" / "cache"))),
        "output in a file": outcome(request("add.onnx", output=str(FOLDER / "file" / "model.plan"))),
        "plugin": outcome(request("add.onnx", plugins=(str(FOLDER / "file"),))),
        "plugin by name": outcome(request("add.onnx", plugins=("libm.so.6",))),
    }
    asked, before = request("add.onnx", "--opt-shapes=A:6x4,B:6x4"), (FOLDER / "add.onnx").read_bytes()
    found["changed meanwhile"] = outcome(asked, meanwhile=change)
    (FOLDER / "add.onnx").write_bytes(before)
    found["changed back"] = outcome(asked)
    disk, shutil.disk_usage = shutil.disk_usage, lambda path: disk(path)._replace(free=20)
    found["full disk"] = outcome(request("add.onnx", "--opt-shapes=A:5x4,B:5x4"))
    shutil.disk_usage = disk
    (FOLDER / "cache" / "timing.cache").write_bytes(b"damaged")
    found["damaged timing cache"] = outcome(request("add.onnx", "--opt-shapes=A:4x4,B:4x4"))
    timing = (FOLDER / "cache" / "timing.cache").read_bytes()
    found["timing cache"] = {"whole": timing.startswith(b"STAND-IN TIMES")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
