"""The settings of an ONNX Runtime session from a configuration, as plain values. Pure, without the library.

Keys and texts: triton-inference-server/onnxruntime_backend README.md and src/onnxruntime.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from edge_serve.backends.parameters import boolean, integer, parameters_of
from edge_serve.errors import InvalidArgument
from edge_serve.records import slotted

#: A model below this size computes on one thread: to wake a second one costs more than it brings (docs/onnxruntime.md).
SMALL_MODEL_BYTES = 1024 * 1024

#: A larger model is not loaded a second time for runs beside others: memory matters more there.
MOST_TWICE_BYTES = 256 * 1024 * 1024

#: Threads of a pool wait for the next piece of a run by polling for a moment only, and not at all between runs: on a
#: small device the cores are needed for the server and its clients (docs/onnxruntime.md).
SPINNING = {"session.force_spinning_stop": "1", "session.intra_op.spin_duration_us": "50"}

#: parameters whose names go to the session's own configuration as they are
_SESSION_KEYS = ("session.", "optimization.", "ep.")
_RUN_KEYS = ("memory.",)


@slotted
class SessionSettings:
    """Everything that a session is made with.

    Attributes:
        graph_level: 0 all optimizations (default), 1 extended, -1 basic, 2 none.
        intra_op_threads, inter_op_threads: 0 = the number of cores.
        global_threads: use the one pool of the process.
        session_entries, run_entries: keys of the library, passed on as they are.
    """

    graph_level: int = 0
    parallel: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    global_threads: bool = False
    mem_arena: bool | None = None
    mem_pattern: bool | None = None
    session_entries: dict[str, str] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)
    op_libraries: list[str] = field(default_factory=list)


def default_max_batch_size(backend_config: Mapping[str, str], otherwise: int) -> int:
    """`--backend-config=default-max-batch-size`.

    Raises:
        InvalidArgument: not a number.
    """
    text = backend_config.get("default-max-batch-size")
    return otherwise if text is None else integer(text)


def session_settings(config: Mapping[str, Any], backend_config: Mapping[str, str], size: int) -> SessionSettings:
    """The settings of one model's sessions; `size` is the size of its file with external data.

    Raises:
        InvalidArgument: a value is not what its key needs.
    """
    parameters = parameters_of(config)
    mode = integer(parameters.get("execution_mode", "0"))
    if mode not in (0, 1):
        raise InvalidArgument(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    intra = integer(parameters.get("intra_op_thread_count", "0"))
    arena, pattern = (parameters.get(f"enable_mem_{name}") for name in ("arena", "pattern"))
    settings = SessionSettings(
        graph_level=int(((config.get("optimization") or {}).get("graph") or {}).get("level", 0)),
        parallel=mode == 1,
        # With the pool of the process, the numbers of threads are the backend's (global_threads), not the model's.
        intra_op_threads=intra if intra > 0 else int(size < SMALL_MODEL_BYTES),
        inter_op_threads=integer(parameters.get("inter_op_thread_count", "0")),
        mem_arena=None if arena is None else boolean(arena),
        mem_pattern=None if pattern is None else boolean(pattern),
        global_threads=boolean(backend_config.get("enable-global-threadpool", "0")),
        session_entries={key: value for key, value in parameters.items() if key.startswith(_SESSION_KEYS)},
        run_entries={key: value for key, value in parameters.items() if key.startswith(_RUN_KEYS)},
        op_libraries=list((config.get("model_operations") or {}).get("op_library_filename", ())),
    )
    if not any("spin" in key for key in settings.session_entries):
        settings.session_entries |= SPINNING
    return settings


def settings_together(settings: SessionSettings, size: int, instances: int, cores: int) -> SessionSettings | None:
    """For a second session, of which each of several instances has its share of the cores; None: not worth it."""
    chosen = settings.intra_op_threads > 0 or settings.global_threads or settings.parallel
    if chosen or instances < 2 or cores < 2 or size > MOST_TWICE_BYTES:
        return None
    return replace(settings, intra_op_threads=max(1, cores // instances))


def global_threads(backend_config: Mapping[str, str]) -> tuple[int, int] | None:
    """Intra-op and inter-op threads of the pool of the process (0 = number of cores), None without such a pool.

    Raises:
        InvalidArgument: not numbers.
    """
    if not boolean(backend_config.get("enable-global-threadpool", "0")):
        return None
    intra, inter = (integer(backend_config.get(f"{name}_op_thread_count", "0")) for name in ("intra", "inter"))
    return max(intra, 0), max(inter, 0)


def model_path(version_directory: Path, config: Mapping[str, Any]) -> Path:
    """The model's file: `model.onnx`, or what `default_model_filename` says; in a directory, its `model.onnx`."""
    path = version_directory / (config.get("default_model_filename") or "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def model_bytes(path: Path) -> int:
    """Size of the model; one in a directory of its own, or with data beside it, counts with everything there."""
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())
