"""The request to the child process that builds, its answer, and the key of an engine: plain values, with JSON forms."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from edge_serve.engines import options as build_options
from edge_serve.engines.options import EngineOptions
from edge_serve.engines.profiles import BatchHints
from edge_serve.records import frozen

#: raised when engines of the same inputs are built otherwise than before
_FORMAT = 1
_BLOCK = 1 << 20


@frozen
class EngineRequest:
    """The request for one engine.

    Attributes:
        onnx: the ONNX file.
        root: the directory that must contain the file's external data.
        cache: directory of built engines.
        cache_bytes: size of the cache above which the engines that were not used for longest are removed.
        timing_cache: file of TensorRT's timing cache; "" = in the cache.
        model: its name, for messages.
        output: file that the plan is copied to; "" = it is used from the cache.
        names: `cc_model_filenames`: compute capability -> name of the output.
        device_name, cuda: of the device, its name and the newest CUDA of its driver; "" = unknown.
        plugins: libraries with TensorRT plugins.
        library: the module of TensorRT that builds; "" = the best one that is installed.
    """

    onnx: str
    root: str
    cache: str
    cache_bytes: int
    timing_cache: str = ""
    model: str = ""
    options: EngineOptions = field(default_factory=EngineOptions)
    hints: BatchHints = field(default_factory=BatchHints)
    device: int = 0
    device_name: str = ""
    cuda: str = ""
    output: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    library: str = ""

    def to_json(self) -> bytes:
        """Return the request as JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> EngineRequest:
        """Return the request that `to_json` wrote."""
        found = json.loads(text)
        hints = found["hints"]
        dims = {name: tuple(shape) for name, shape in hints["dims"].items()}
        found["hints"] = BatchHints(hints["max_batch"], tuple(hints["preferred"]), dims)
        found["options"] = build_options.from_json(found["options"])
        found["plugins"] = tuple(found["plugins"])
        return EngineRequest(**found)


@frozen
class BuiltEngine:
    """An engine that was built, or was in the cache.

    Attributes:
        plan: its file: the output of the request, or the one in the cache.
        cached: it was in the cache.
        seconds: that the build took; 0 = it was in the cache.
        profiles: for each profile the smallest, best, and largest shape by input.
        workspace_bytes: the memory for one layer that the build was given; 0 = it was in the cache.
    """

    plan: str
    key: str
    cached: bool
    seconds: float
    bytes: int
    tensorrt: str
    capability: str
    device: str
    onnx: str
    onnx_sha256: str
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]]
    flags: Sequence[str]
    workspace_bytes: int = 0


@frozen
class BuildProgress:
    """Progress of a build.

    Attributes:
        phase: of TensorRT, or our own: waiting, parsing, building, writing.
        percent: of the phase; None = unknown, as with TensorRT before 9.1.
        seconds: since the build began.
    """

    phase: str
    percent: int | None
    seconds: float

    def __str__(self) -> str:
        share = "" if self.percent is None else f" {self.percent} %,"
        return f"building the engine: {self.phase},{share} {self.seconds:.0f} s"


def engine_key(request: EngineRequest, digests: Sequence[str], tensorrt: str, capability: str) -> str:
    """Return the key of an engine: a digest of everything that it depends on.

    Args:
        digests: of the ONNX file, of its external data, and of libraries with plugins, in order.
    """
    options = asdict(request.options)
    if request.options.tf32:  # keys of engines that were built before this option existed stay valid
        del options["tf32"]
    about: dict[str, Any] = {
        "format": _FORMAT,
        "files": list(digests),
        "options": options,
        "hints": asdict(request.hints),
        "tensorrt": tensorrt,
        "capability": capability,
        "device": request.device_name,
        "cuda": request.cuda,
        "machine": os.uname().machine,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
