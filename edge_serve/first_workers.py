"""Starts the first workers before the rest of the server is imported: the imports of both take as long, on cores of
their own at the same time.

Imports little, and not NumPy, for the same reason. What is started is a guess from the names of files. The load of a
model takes a worker that was started as it would start one (`Workers`); those that none takes are ended.
"""

from __future__ import annotations

import glob
import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edge_serve.aio.within import within
from edge_serve.backends.tensorrt.plan import PLATFORM
from edge_serve.config.settings.server import ServerConfig
from edge_serve.engines.settings import cache_settings
from edge_serve.workers.launch.interpreter import Interpreter, own_interpreter
from edge_serve.workers.launch.sandbox import Sandbox
from edge_serve.workers.launch.spawn import WORKER, Spawned, spawn

log = logging.getLogger(__name__)

#: how long the file systems of the repositories may take to answer: nothing else of the start waits for them
_FIND_SECONDS = 0.5
#: the setting of a pool of threads for all sessions (backends/onnxruntime/settings.py)
_GLOBAL_POOL = "enable-global-threadpool"


def start_first_workers(config: ServerConfig) -> list[Spawned]:
    """Start a worker for the ONNX models, if there are any, and one for each Python model; no more than there are
    cores."""
    most = len(os.sched_getaffinity(0))
    found: list[Spawned] = []
    try:
        for backend, interpreter in within(_FIND_SECONDS, _find_first, config, most):
            found.append(spawn(interpreter, WORKER, config.worker_heartbeat_timeout_secs, backend))
    except Exception as error:  # a guess ends no start; the load of a model meets the same, and reports it
        log.debug("no worker is started ahead: %s", error)
    return found


def sandbox_of(config: ServerConfig) -> Sandbox | None:
    """Return what is closed to workers; None = nothing is.

    Raises:
        InvalidArgument: a setting cannot be used.
    """
    sandbox = Sandbox.of(config, os.environ)
    if sandbox is None:
        return None
    engines = cache_settings(config.backend_settings(PLATFORM), os.environ).directory
    return replace(sandbox, engines=engines.absolute())


def _find_first(config: ServerConfig, most: int) -> list[tuple[str, Interpreter]]:
    """Return the backends and interpreters of the first workers."""
    sandbox = sandbox_of(config)

    def interpreter(own: list[Path] | None) -> Interpreter:
        return own_interpreter() if sandbox is None else sandbox.confine(own_interpreter(), own)

    # with some versions of the library a process gets no pool once it has made a session, as `import_ahead` does
    ahead = _GLOBAL_POOL not in config.backend_settings("onnxruntime") and any(_models(config, "model.onnx"))
    shared = [("onnxruntime", interpreter(None))] if ahead else []
    alone = (("python", interpreter([directory])) for directory in _models(config, "model.py"))
    return [*itertools.islice(itertools.chain(shared, alone), most)]


def _models(config: ServerConfig, file: str) -> Iterator[Path]:
    """Yield the directories of the models that are to be loaded and have a version with this file."""
    names = ["*"] if config.named_models is None else map(glob.escape, config.named_models)
    for root, name in itertools.product(map(Path, config.model_repository), names):
        versions = root.glob(f"{name}/*/{file}")  # read as far as they are asked for: there may be thousands
        for directory, _ in itertools.groupby(path.parents[1] for path in versions):
            yield directory.resolve()
