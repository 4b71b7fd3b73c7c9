"""A session on a GPU that runs on a stream of its own, and its bindings to memory of the device.

A run returns when it is enqueued. The library waits neither before it nor, as a rule, after it, so it is the caller
that lets a run begin when its inputs are there, and that reads outputs when the stream is through.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.cuda.device_buffers import DeviceBuffers
from edge_serve.backends.cuda.tensor_path import TensorPath
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.messages.tensors import DataType, Shape

#: The library does not wait for the device at the end of a run. Without a graph id (-1 = no CUDA graph), the Python
#: module of 1.32 takes 30 us to look for it.
NO_WAIT = {"disable_synchronize_execution_providers": "1", "gpu_graph_id": "-1"}
#: Options of one run in `RUNS_PER_WAIT`. Operators such as ScatterND put arguments in pinned memory, which the library
#: releases only at the end of a run after which it waits (DeviceStreamCollection::CleanUp).
WAIT = {**NO_WAIT, "disable_synchronize_execution_providers": "0"}
RUNS_PER_WAIT = 100


class GpuSession:
    """A session, and the streams and seats that it runs on. One thread at a time runs it."""

    def __init__(self, cuda: CudaApi, device: int, path: TensorPath, session: sessions.Session) -> None:
        self.cuda = cuda
        self.device = device
        self.path = path
        self.session = session
        self._is_open = True

    def close(self) -> None:
        """Release the session, then its stream. No batch may be on its way, and all bindings are closed."""
        if not self._is_open:
            return
        self._is_open = False
        self.path.drain()
        del self.session
        self.path.close()

    def __del__(self) -> None:
        """Close it: a backend that described its model and did not load it is dropped, not closed."""
        if not sys.is_finalizing():
            with contextlib.suppress(CudaError):
                self.close()


class SeatBinding:
    """The session's binding to the inputs of one seat.

    Args:
        buffers: for the inputs on the device.
        options, waiting: of a run, with NO_WAIT and with WAIT.
        full: the largest number of rows of a batch; memory is allocated for as many. 0 = the model does not batch.
    """

    def __init__(
        self,
        gpu: GpuSession,
        buffers: DeviceBuffers,
        options: sessions.RunOptions | None,
        waiting: sessions.RunOptions | None,
        full: int,
    ) -> None:
        self._buffers = buffers
        self._device = gpu.device
        self._options = options
        self._waiting = waiting
        self._runs = 0
        self._full = full
        self._session: Any = gpu.session
        self._io: Any = gpu.session.io_binding()
        self._bound: dict[str, tuple[int, Shape]] = {}

    def bind(self, inputs: Sequence[tuple[str, DataType, Shape, int]]) -> list[int]:
        """Bind the inputs of a batch. Return their places on the device.

        Args:
            inputs: name, type, shape, and the place where the device reads it; 0 = in the seat's buffers.

        Raises:
            CudaError: the device has no memory for them.
        """
        if self._bound.keys() != {one[0] for one in inputs}:  # an optional input was added or left out
            self._io.clear_binding_inputs()
            self._bound.clear()
        places = []
        for name, datatype, shape, place in inputs:
            pointer = place or self._reserve(name, shape, prod(shape) * datatype.size)
            if self._bound.get(name) != (pointer, shape):
                sessions.bind(self._io, name, self._device, datatype, shape, pointer)
                self._bound[name] = (pointer, shape)
            places.append(pointer)
        return places

    def _reserve(self, name: str, shape: Shape, nbytes: int) -> int:
        rows = shape[0] if shape else 0
        full = nbytes // rows * self._full if rows and rows < self._full else nbytes
        return self._buffers.reserve(name, nbytes, max(full, 2 * self._buffers.size(name)))

    def run(self, outputs: Sequence[sessions.Output]) -> list[tuple[int, Shape]]:
        """Enqueue a run, whose inputs are there. Return the addresses of the outputs, where they are once it has ended
        and until the next run, and their shapes.

        Raises:
            EdgeServeError: the library refuses or fails.
        """
        self._runs += 1
        options = self._options if self._runs % RUNS_PER_WAIT else self._waiting
        return sessions.run_bound(self._session, self._io, outputs, self._device, options)

    def close(self) -> None:
        """Release the session. No batch may be on its way."""
        del self._session, self._io
