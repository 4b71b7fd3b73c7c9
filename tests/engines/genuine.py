"""Builds with TensorRT-RTX, a genuine library of NVIDIA that parses and builds without a GPU. Prints outcomes as JSON.

`python -m tests.engines.genuine install` puts it into the cache of the tests (95 MB from the package index). Its
interface is that of TensorRT 11. Without a driver it keeps no timing cache, and logs an error for each try.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_serve.backends.tensorrt.library import load_library
from edge_serve.engines.builder import build_plan
from edge_serve.engines.options import parse_options
from edge_serve.engines.request import EngineRequest
from edge_serve.errors import EdgeServeError
from tests.backends import onnx_models
from tests.backends.cuda.host import HostCuda

VERSION = "1.7.1.116"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-serve" / "tensorrt-rtx"
PLACE = CACHE / f"{VERSION}-{sys.implementation.cache_tag}"
COMMAND = ".venv/bin/python -m tests.engines.genuine install"


def install() -> None:
    """Install the library and its bindings, unless they are there.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    if PLACE.is_dir():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        wheels = [f"tensorrt_rtx_cu13_{part}=={VERSION}" for part in ("libs", "bindings")]
        subprocess.run([*pip, "--target", str(made), *wheels], check=True, timeout=600)
        made.rename(PLACE)


def outcomes(folder: Path) -> dict[str, Any]:
    """Return case -> outcome."""
    import tensorrt_rtx_bindings

    library = load_library(lambda name: tensorrt_rtx_bindings, HostCuda)

    def built(name: str, options: str) -> dict[str, Any]:
        told: list[Any] = []
        asked = EngineRequest(str(folder / name), str(folder), str(folder / "cache"), 10**9, model="m")
        asked = replace(asked, options=parse_options(options, "a case"))
        try:
            made = build_plan(library, asked, folder / "timing.cache", lambda *progress: told.append(progress))
        except EdgeServeError as error:
            return {"error": error.message}
        return {"bytes": made.content.nbytes, "profiles": made.profiles, "told": told}

    onnx_models.add_sub(folder / "add.onnx", ("N", 4), onnx_models.FLOAT)
    onnx_models.zip_map(folder / "zip_map.onnx")
    (folder / "broken.onnx").write_bytes((folder / "add.onnx").read_bytes()[:-30])
    shapes = "--min-shapes=A:1x4,B:1x4 --opt-shapes=A:2x4,B:2x4 --max-shapes=A:8x4,B:8x4"
    return {
        "dynamic": built("add.onnx", f"{shapes} --optimization-level=1 --workspace-mb=64"),
        "fp16": built("add.onnx", f"{shapes} --fp16"),
        "contradiction": built("add.onnx", "--opt-shapes=A:2x4,B:3x4"),
        "compatible": built("add.onnx", f"{shapes} --version-compatible"),
        "unsupported": built("zip_map.onnx", "--opt-shapes=X:1x4"),
        "broken": built("broken.onnx", shapes),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["install"]:
        install()
    else:
        print(json.dumps(outcomes(Path(sys.argv[1]))))
