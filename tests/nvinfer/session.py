"""What the checks of a module `tensorrt` are written with: its log, its allocators, and a session on the device."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import tensorrt as trt

from edge_serve.backends.cuda.api import load_cuda
from tests.stand_ins.plans import plan, tensor

#: the host CudaApi under the stand-in for cuda-bindings; on a machine with a GPU, CUDA
host: Any = getattr(import_module("cuda.bindings.runtime"), "host", None) or load_cuda()
host.set_device(0)
VERSION = ".".join(trt.__version__.split(".")[:3])
BATCHED, WIDE = ((1, 4), (4, 4), (8, 4)), ((1, 4), (16, 4), (64, 4))
MAJOR = int(VERSION.partition(".")[0])
#: 8.6 has no INT64
INDEX = ("INT64", "i8") if MAJOR >= 10 else ("INT32", "i4")
KINDS = {"FLOAT": "f4", "HALF": "f2", "INT8": "i1", "INT32": "i4", "UINT8": "u1", INDEX[0]: INDEX[1]}


class Log(trt.ILogger):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        assert int(severity) in range(5)
        self.texts.append(msg)

    @property
    def last(self) -> str:
        return self.texts[-1]


class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
    def __init__(self, has_memory: bool = True) -> None:
        super().__init__()
        self.has_memory, self.pointer = has_memory, 0
        self.shape: tuple[int, ...] = ()
        self.streams: list[int] = []

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        assert MAJOR < 10, "the other one is there"
        return self.reallocate_output_async(tensor_name, memory, size, alignment, 0)

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        assert tensor_name == "OUTPUT0"
        self.streams.append(stream)
        self.pointer = host.malloc(max(1, size)) if self.has_memory else 0
        return self.pointer

    def notify_shape(self, tensor_name: str, shape: Any) -> None:
        self.shape = tuple(shape)


def tensors(dtype: str = "FLOAT", shape: tuple[int, ...] = (-1, 4)) -> list[dict[str, Any]]:
    both = [tensor(f"INPUT{n}", "INPUT", dtype, shape) for n in (0, 1)]
    return both + [tensor(f"OUTPUT{n}", "OUTPUT", dtype, shape) for n in (0, 1)]


def addsub(dtype: str = "FLOAT", **more: Any) -> bytes:
    profiles = [{"INPUT0": one, "INPUT1": one} for one in (BATCHED, WIDE)]
    return plan(more.pop("op", "addsub"), tensors(dtype), profiles, **{"version": VERSION, **more})


def single(op: str, inputs: dict[str, Any], output: dict[str, Any], profile: Any) -> bytes:
    return plan(op, [inputs, output], [{inputs["name"]: profile}], version=VERSION)


class Session:
    """An engine with one context, and device memory that is freed at its end."""

    def __init__(self, content: bytes) -> None:
        self.log = Log()
        self.runtime = trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(content)
        assert self.engine is not None, self.log.last
        self.context = self.engine.create_execution_context()
        self.stream = host.stream_create()
        self.memory: list[int] = []

    def set(self, name: str, array: Any) -> None:
        assert self.context.set_input_shape(name, tuple(array.shape)), self.log.last
        assert self.context.set_tensor_address(name, self.put(array))

    def put(self, array: Any) -> int:
        self.memory.append(host.malloc(max(1, array.nbytes)))
        host.memcpy_async(self.memory[-1], array.ctypes.data, array.nbytes, self.stream)
        host.stream_synchronize(self.stream)
        return self.memory[-1]

    def get(self, pointer: int, shape: Any, dtype: str) -> Any:
        array = np.zeros(tuple(shape), dtype)
        host.memcpy_async(array.ctypes.data, pointer, array.nbytes, self.stream)
        host.stream_synchronize(self.stream)
        return array

    def output(self, name: str, dtype: str = "f4") -> Callable[[], Any]:
        """Set memory for an output. Return what reads it."""
        shape = tuple(self.context.get_tensor_shape(name))
        pointer = self.put(np.zeros(shape, dtype))
        self.context.set_tensor_address(name, pointer)
        return lambda: self.get(pointer, shape, dtype)

    def run(self) -> None:
        assert self.context.execute_async_v3(self.stream), self.log.last

    def close(self) -> None:
        host.stream_destroy(self.stream)
        for pointer in self.memory:
            host.free(pointer)
