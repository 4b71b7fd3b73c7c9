"""Loads TensorRT after the CUDA device count was asked: the whole library, its lean runtime, or TensorRT for RTX.

Without a driver a runtime of TensorRT may end the process, so it is not touched before CUDA found a device.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.cuda.api import CudaApi, CudaError, load_cuda
from edge_serve.backends.tensorrt.errors import ERROR, ErrorLog, failure
from edge_serve.backends.tensorrt.plan import Step
from edge_serve.errors import Internal, Unavailable
from edge_serve.records import frozen

#: modules with the names of TensorRT that are tried, best first; each runs plans of the others
_MODULES = ("tensorrt", "tensorrt_lean")
_INSTALLED_BY = {"tensorrt_lean": "pip install tensorrt-lean", "tensorrt_rtx": "pip install tensorrt-rtx"}
_INSTALL = (
    "pip install 'edge-serve[tensorrt]' (on a Jetson: apt-get install python3-libnvinfer, and edge-serve's package, or "
    "an environment with --system-site-packages)"
)
#: of the process: TensorRT's plugins are registered once. Name as it was given -> file
_plugins: dict[str, str] = {}
_RTLD_DI_LINKMAP = 2
_LEVELS = {0: "ERROR", 1: "ERROR", 2: "WARNING"}


@frozen
class Library:
    """TensorRT in this process.

    Attributes:
        module: `tensorrt`, or a module with its names.
        errors: what its logger received; logger: for runtimes. All models of the process share both.
    """

    module: Any
    version: str
    cuda: CudaApi
    errors: ErrorLog
    logger: Any

    def allocator(self, cuda: CudaApi, *, on_host: bool) -> Any:
        """Return an IOutputAllocator for one output: `pointer` and `shape` are those of the last run.

        Args:
            on_host: the host writes the output, and not the device.
        """
        calls = (cuda.host_alloc, cuda.free_host) if on_host else (cuda.malloc, cuda.free)
        return _allocator_class(self.module)(*calls, self.errors)


def load_library(
    load: Callable[[str], Any] = import_module, cuda: Callable[[], CudaApi] = load_cuda, *, library: str = ""
) -> Library:
    """Return TensorRT.

    Args:
        library: the module to use (`settings.LIBRARIES`); "" = the best one that is installed, but for `tensorrt_rtx`,
            which does not run the plans of the others.

    Raises:
        Unavailable: CUDA finds no device, or no module of TensorRT is installed.
    """
    device = cuda()
    reasons = []
    for name in (library,) if library else _MODULES:
        try:
            module = load(name)
        except Exception as error:  # a library that does not load raises OSError, RuntimeError, ...
            reasons.append(f"{name}: {error}")
            continue
        errors, logger = _log_of(module)
        return Library(module, str(module.__version__), device, errors, logger)
    raise Unavailable(f"TensorRT cannot be loaded: {'; '.join(reasons)}; {_INSTALLED_BY.get(library, _INSTALL)}")


@functools.cache
def _log_of(module: Any) -> tuple[ErrorLog, Any]:
    """Return the one log and logger of a module: TensorRT keeps the first logger of a process (`getLogger`), and the
    bindings keep what they record of each class that derives from theirs."""
    errors = ErrorLog()

    class TensorRtLogger(module.ILogger):  # type: ignore[misc]  # the base exists where TensorRT is installed only
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, msg: str) -> None:
            errors.record(int(severity), msg)
            if int(severity) in _LEVELS:
                host.current().log(_LEVELS[int(severity)], f"TensorRT: {msg}")

    return errors, TensorRtLogger()


def make_runtime(library: Library, model: str, dla_core: int, *, host_code: bool) -> Any:
    """Return a runtime for plans.

    Raises:
        Internal: TensorRT refuses.
    """
    library.errors.take()  # older ones, which are not this call's
    try:
        runtime = library.module.Runtime(library.logger)
    except TypeError:  # the library has returned none, and has logged the reason
        runtime = None
    logged = library.errors.take()
    if runtime is None or logged.errors:
        raise failure(Step.RUNTIME, logged, model)
    runtime.engine_host_code_allowed = host_code
    if dla_core >= 0:
        runtime.DLA_core = dla_core
    return runtime


def load_plugins(library: Library, paths: Sequence[str]) -> list[str]:
    """Load libraries with plugins, and register TensorRT's own, once in a process. Return the files, for some of which
    the loader has searched.

    Raises:
        Internal: one does not load.
    """
    for path in paths:
        if path not in _plugins:
            try:
                _plugins[path] = _file_of(ctypes.CDLL(path, ctypes.RTLD_GLOBAL))
            except OSError as error:
                is_missing = "/" in path and not os.path.lexists(path)  # a bare name is looked for elsewhere
                reason = "there is no such file" if is_missing else error
                raise Internal(
                    f"plugin library '{path}' does not load: {reason}; correct "
                    f"--backend-config=tensorrt,plugins={';'.join(paths)} (or --plugin of edge-serve build)"
                ) from error
    register = getattr(library.module, "init_libnvinfer_plugins", None)
    if register is not None:  # the lean runtime has none
        register(library.logger, "")
    return [_plugins[path] for path in paths]


class _LinkMap(ctypes.Structure):
    """The first members of the loader's `struct link_map` (link.h)."""

    _fields_ = (("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p))


def _file_of(loaded: ctypes.CDLL) -> str:
    """Return the file that the loader has mapped for a library."""
    found = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(loaded._handle), _RTLD_DI_LINKMAP, ctypes.byref(found))
    return os.fsdecode(found.contents.l_name)


@functools.cache
def _allocator_class(module: Any) -> Any:
    """Return one class for a module, as `_log_of` has one logger."""

    class Allocator(module.IOutputAllocator):  # type: ignore[misc]
        """Memory that grows with the output, and the shape that the run reports.

        TensorRT takes 0 as a refusal and no exception, so the reason goes where TensorRT's own errors go.
        """

        def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None], errors: ErrorLog) -> None:
            super().__init__()
            self._allocate, self._free, self._errors = allocate, free, errors
            self.pointer = self._size = 0
            self.shape: tuple[int, ...] = ()

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            if size > self._size or not self.pointer:
                self.close()
                try:
                    self.pointer, self._size = self._allocate(max(1, size)), size
                except CudaError as error:
                    self._errors.record(ERROR, f"no memory for {size} bytes of output '{tensor_name}': {error.message}")
            return self.pointer

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(int(dim) for dim in shape)

        def close(self) -> None:
            if self.pointer:
                self._free(self.pointer)
                self.pointer = self._size = 0

    return Allocator
