"""TensorRT's library: a runtime that does not start, and memory for outputs that TensorRT asks for."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_serve.backends.tensorrt.library import Library, load_library, load_plugins, make_runtime
from edge_serve.errors import Internal, Unavailable
from tests.backends.cuda.host import HostCuda


class _Logger:
    def log(self, severity: int, msg: str) -> None:
        raise NotImplementedError


class _NoRuntime:
    """As the bindings, whose runtime the library does not make."""

    def __init__(self, logger: _Logger) -> None:
        logger.log(0, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)")
        raise TypeError("pybind11::init(): factory function returned nullptr")


MODULE = ModuleType("tensorrt")
vars(MODULE).update(__version__="10.3.0", ILogger=_Logger, Runtime=_NoRuntime, IOutputAllocator=object)


def library(host: HostCuda) -> Library:
    return load_library(lambda name: MODULE, lambda: host)


def test_runtime_that_the_library_does_not_make_is_an_error_with_its_reason() -> None:
    with pytest.raises(Internal, match=r"unable to create TensorRT runtime: .*error: 35.*see: edge-serve doctor"):
        make_runtime(library(HostCuda()), "m", -1, host_code=False)


@pytest.mark.parametrize(("on_host", "call"), [(False, "cudaMalloc"), (True, "cudaHostAlloc")])
def test_allocator_without_memory_refuses_and_the_reason_is_logged(on_host: bool, call: str) -> None:
    host = HostCuda()
    found = library(host)
    allocator: Any = found.allocator(host, on_host=on_host)
    host.fail(call, 2)

    assert allocator.reallocate_output_async("OUTPUT0", 0, 4096, 256, 0) == 0
    (error,) = found.errors.take().errors
    assert error.startswith(f"no memory for 4096 bytes of output 'OUTPUT0': {call} failed with")
    assert allocator.reallocate_output_async("OUTPUT0", 0, 4096, 256, 0) == allocator.pointer != 0
    allocator.close()
    assert host.open_handles()["memory"] == 0


@pytest.mark.parametrize(
    ("library", "installed", "found", "tried"),
    [
        ("", "tensorrt tensorrt_rtx", r"^tensorrt$", "tensorrt"),
        ("tensorrt_rtx", "tensorrt tensorrt_rtx", r"^tensorrt_rtx$", "tensorrt_rtx"),
        ("tensorrt_lean", "tensorrt tensorrt_lean", r"^tensorrt_lean$", "tensorrt_lean"),
        ("", "tensorrt_rtx", r"pip install 'edge-serve\[tensorrt\]'", "tensorrt tensorrt_lean"),
        ("tensorrt_rtx", "tensorrt", r"No module named 'tensorrt_rtx'; pip install tensorrt-rtx$", "tensorrt_rtx"),
    ],
)
def test_rtx_is_loaded_where_it_is_asked_for(library: str, installed: str, found: str, tried: str) -> None:
    asked: list[str] = []

    def load(name: str) -> ModuleType:
        asked.append(name)
        if name not in installed.split():
            raise ModuleNotFoundError(f"No module named '{name}'")
        made = ModuleType(name)
        vars(made).update(vars(MODULE), __name__=name)
        return made

    try:
        outcome = load_library(load, HostCuda, library=library).module.__name__
    except Unavailable as error:
        outcome = error.message
    assert re.search(found, outcome)
    assert asked == tried.split()


def test_loads_share_their_classes_but_not_their_errors() -> None:
    """The bindings keep what they record of each class that derives from theirs."""
    host = HostCuda()
    first, second = library(host), library(host)

    assert type(first.logger) is type(second.logger)
    assert type(first.allocator(host, on_host=False)) is type(second.allocator(host, on_host=False))
    first.logger.log(1, "no")
    assert (len(first.errors.take().errors), len(second.errors.take().errors)) == (1, 0)


def test_plugin_library_is_the_file_that_the_loader_has_mapped() -> None:
    """A bare name is not a file of the working directory."""
    found = library(HostCuda())

    for _ in range(2):  # the second time it is loaded already
        (file,) = load_plugins(found, ["libm.so.6"])
        assert Path(file).is_absolute()
        assert str(Path(file).resolve()) in Path("/proc/self/maps").read_text()
