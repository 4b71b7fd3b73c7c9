"""Builds one engine: `python -m edge_serve.engines.child PARENT`, with the request on standard input.

A process of its own, because TensorRT may crash, hang, or exhaust the memory while it builds. It runs at a low
priority where that is permitted, the kernel kills it first when memory runs out, and it ends with its parent.
Standard output has one JSON document a line: progress, at last `done` or `error`. It imports the standard library
and TensorRT only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_serve.backends.onnxruntime.external import check_external_data, locations
from edge_serve.backends.tensorrt.library import Library, load_library, load_plugins
from edge_serve.backends.tensorrt.plan import PlanMeta, Step
from edge_serve.engines.builder import build_plan, check_builder, lost_memory
from edge_serve.engines.cache import EngineCache, export
from edge_serve.engines.request import BuiltEngine, EngineRequest, digest, engine_key
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, triton_code
from edge_serve.files import lock_shared

_NICE = 10
_PR_SET_PDEATHSIG = 1
#: the kernel kills it before the server and its workers
_OOM_SCORE = "1000"
_TIMING_CACHE = "timing.cache"
#: a plan has at least this part of the ONNX file's bytes: FP32 weights as INT8
_SMALLEST_PLAN = 4

Report = Callable[..., None]


def build_engine(request: EngineRequest, library: Library, report: Report) -> BuiltEngine:
    """Return the engine of a request, from the cache or built now.

    Raises:
        EdgeServeError: it cannot be built, with the reason and advice.
    """
    check_builder(library)
    capability = _use_device(library, request.device)
    request = replace(request, plugins=tuple(load_plugins(library, request.plugins)))
    digests = _digests(request)
    sha256, key = digests[0], engine_key(request, digests, library.version, capability)
    cache = EngineCache(Path(request.cache), request.cache_bytes)
    seconds, workspace = 0.0, 0
    with contextlib.ExitStack() as held:
        found = _find(cache, key, held)
        if found is None:
            advice = "name another one: --cache DIR, or of a server --backend-config=tensorrt,engine-cache=DIR"
            waiting = partial(report, phase="waiting for another build", percent=None)
            with _disk_errors(f"engine cache '{request.cache}'", advice), cache.locked(waiting):
                found = _find(cache, key, held)
                if found is None:
                    found, seconds, workspace = _build(request, library, cache, key, sha256, capability, report)
                    held.callback(os.close, lock_shared(found[0]))
        plan, meta = found
        if request.output:
            target = Path(request.output)
            target = target.with_name(request.names.get(capability, target.name))
            with _disk_errors(f"the plan '{target}'", "free some space, or name another file"):
                export(plan, meta, target)
            plan = target
    return BuiltEngine(
        str(plan), key, not seconds, round(seconds, 3), meta.plan_bytes, meta.tensorrt, meta.capability, meta.device,
        request.onnx, meta.onnx_sha256, meta.profiles, meta.flags, workspace,
    )  # fmt: skip


def _find(cache: EngineCache, key: str, held: contextlib.ExitStack) -> tuple[Path, PlanMeta] | None:
    """Return an engine of the cache, which no build removes before `held` ends; None = it is not there."""
    found = cache.find(key)
    if found is not None:
        try:
            held.callback(os.close, lock_shared(found[0]))
        except OSError:  # another build has removed it since
            return None
    return found


def _build(
    request: EngineRequest, library: Library, cache: EngineCache, key: str, sha256: str, capability: str, report: Report
) -> tuple[tuple[Path, PlanMeta], float, int]:
    """Return a new engine of the cache, the seconds that the build took, and its workspace."""
    _check_space(cache, Path(request.onnx))
    started = time.monotonic()
    timing_cache = Path(request.timing_cache or Path(request.cache, _TIMING_CACHE))
    made = build_plan(library, request, timing_cache, lambda phase, percent: report(phase=phase, percent=percent))
    if engine_key(request, _digests(request), library.version, capability) != key:
        # it may have waited long for another build, and its key would name an engine of other files
        raise Unavailable(
            f"{Step.BUILD.value}: '{request.onnx}' was changed during the build, or a file that it refers to: build "
            "again once all are there"
        )
    report(phase="writing", percent=None)
    meta = PlanMeta(
        library.version, capability, request.device_name, sha256,
        tuple({name: [list(shape) for shape in one] for name, one in profile.items()} for profile in made.profiles),
        made.flags, os.uname().machine, made.content.nbytes,
    )  # fmt: skip
    seconds = max(0.001, time.monotonic() - started)
    return (cache.store(key, made.content, meta), meta), seconds, made.workspace_bytes


def _check_space(cache: EngineCache, onnx: Path) -> None:
    """Check that the disk may hold the plan, before minutes are spent on it. Make room for it in the cache if not.

    Raises:
        Internal: it cannot.
    """
    weights = sum((onnx.parent / os.fsdecode(name)).stat().st_size for name in locations(onnx)) + onnx.stat().st_size
    least = weights // _SMALLEST_PLAN
    if (free := cache.make_room(least)) < least:
        raise Internal(
            f"the engine cache '{cache.directory}' has {free / 1e6:.0f} MB of free disk, and the plan of this ONNX "
            f"file takes {least / 1e6:.0f} MB or more: free some space, or name another cache (--cache DIR, of a "
            "server --backend-config=tensorrt,engine-cache=DIR)"
        )


def _use_device(library: Library, device: int) -> str:
    """Use a device. Return its compute capability."""
    count = library.cuda.device_count()
    if device >= count:
        raise InvalidArgument(
            f"GPU {device} was asked for, and CUDA finds {count}, numbered from 0: see edge-serve doctor"
        )
    library.cuda.set_device(device)
    major, minor = library.cuda.capability(device)
    return f"{major}.{minor}"


def _digests(request: EngineRequest) -> list[str]:
    """Return the digests of the ONNX file, of its external data, and of libraries with plugins."""
    onnx = Path(request.onnx)
    check_external_data(onnx, Path(request.root))
    files = [onnx, *(onnx.parent / os.fsdecode(name) for name in sorted(locations(onnx)))]
    files += map(Path, request.plugins)
    try:
        return [digest(path) for path in files]
    except OSError as error:
        raise InvalidArgument(f"'{error.filename}' cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _disk_errors(subject: str, advice: str) -> Any:
    try:
        yield
    except OSError as error:
        full = "; the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise Internal(f"{subject} cannot be written: {error.strerror or error}{full}; {advice}") from error


def _prepare(parent: int) -> None:
    """Yield to other processes as far as the system lets it, and die with the parent."""
    with contextlib.suppress(OSError):  # our units forbid setpriority(2); those of edge-ota have Nice=
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main(arguments: list[str]) -> int:
    """Serve one request."""
    _prepare(int(arguments[0]))
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print

    def report(**fields: Any) -> None:
        channel.write(json.dumps(fields) + "\n")
        channel.flush()

    try:
        request = EngineRequest.from_json(sys.stdin.buffer.read())
        report(phase="loading TensorRT", percent=None)
        report(done=asdict(build_engine(request, load_library(library=request.library), report)))
        return 0
    except EdgeServeError as error:
        failed = error
    except MemoryError as error:
        failed = lost_memory(error)
    except Exception as error:  # of TensorRT's bindings
        failed = Internal(f"{Step.BUILD.value}: {type(error).__name__}: {error}")
    report(error=failed.message, code=triton_code(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
