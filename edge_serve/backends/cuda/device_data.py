"""Bytes in the memory of a GPU, where `InferTensor.data` has them in place of a buffer, and copies from and to it.

A backend gets such inputs if its instances say so (`takes_device_memory`), and may return such outputs: the worker
copies them from the device into the reply. All copies here are on the default stream of the data's device, and are
done when the call returns. Worker's side: the standard library and NumPy only.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeGuard

import numpy as np

from edge_serve.backends.base import DeviceLost, Reply
from edge_serve.backends.cuda.api import CudaApi, CudaError, load_cuda
from edge_serve.backends.cuda.memory import allocate
from edge_serve.messages.tensors import Buffer
from edge_serve.records import slotted


@functools.cache
def process_cuda() -> CudaApi:
    """Return CUDA as this process uses it, loaded with the first call.

    Raises:
        Unavailable: there is none, with the reason.
    """
    return load_cuda()


@slotted
class DeviceData:
    """Bytes in the memory of a GPU. They are complete, or work on the default stream completes them.

    Attributes:
        pointer: their address; device: the number of the GPU.
        owner: keeps the memory as long as this refers to it.
    """

    pointer: int
    nbytes: int
    device: int
    owner: object = None

    def __len__(self) -> int:
        return self.nbytes

    def __bytes__(self) -> bytes:
        return bytes(self.on_host())

    def on_host(self) -> memoryview:
        """Return a copy in ordinary memory.

        Raises:
            DeviceLost: the device cannot be used any more. CudaError: the copy failed.
        """
        made = np.empty(self.nbytes, np.uint8).data
        self.copy_into(made)
        return made

    def copy_into(self, target: memoryview) -> None:
        """Copy the bytes into writable memory of the same size. Raises as `on_host`."""
        copy(address_of(target), self.pointer, self.nbytes, self.device)


def is_on_device(data: object) -> TypeGuard[DeviceData]:
    """Return whether the data of a tensor are in the memory of a GPU."""
    return type(data) is DeviceData


def outputs_on_host(reply: Reply) -> None:
    """Copy the outputs of a reply that lie on a GPU to the host. Raises as `DeviceData.on_host`."""
    for tensor in reply.outputs:
        if is_on_device(tensor.data):
            tensor.data = tensor.data.on_host()


def address_of(data: Buffer | DeviceData) -> int:
    """Return the address of bytes of the host or of a GPU; 0 if there are none."""
    if type(data) is DeviceData:
        return data.pointer
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0]) if len(data) else 0  # type: ignore[arg-type]


def copy(target: int, source: int, nbytes: int, device: int) -> None:
    """Copy between any two of host and device, and wait for it.

    Raises:
        DeviceLost: the device cannot be used any more. CudaError: the copy failed.
    """
    if nbytes:
        with on_device(device) as cuda:
            cuda.memcpy_async(target, source, nbytes, 0)
            cuda.stream_synchronize(0)


@contextmanager
def on_device(device: int, cuda: CudaApi | None = None) -> Iterator[CudaApi]:
    """Let this thread use a device for a while: a model of the same thread may have chosen another one, which is set
    again at the end. For a thread that has chosen none CUDA names device 0, and to set that would make a context on it.
    So a device that has no context is not set again.

    Args:
        cuda: None = as this process uses it.

    Raises:
        Unavailable: CUDA cannot be used. DeviceLost: an error that ends the context was raised inside.
    """
    cuda = cuda or process_cuda()
    try:
        before = cuda.get_device()
        cuda.set_device(device)
        try:
            yield cuda
        finally:
            if before != device and cuda.has_context(before):
                cuda.set_device(before)
    except CudaError as error:
        if error.sticky:
            raise DeviceLost(error.message) from error
        raise


def upload(data: Buffer, device: int) -> DeviceData:
    """Return the bytes in new memory of a GPU, which is freed with the last reference to it. Raises as `copy`."""
    memory = _Allocation(len(data), device)
    copy(memory.pointer, address_of(data), len(data), device)
    return DeviceData(memory.pointer, len(data), device, memory)


class _Allocation:
    """Memory of a GPU that is freed with the last reference to it."""

    __slots__ = ("__weakref__", "pointer")

    def __init__(self, nbytes: int, device: int) -> None:
        with on_device(device) as cuda:
            self.pointer = allocate(cuda, max(1, nbytes))
        release_with(self, cuda, device, cuda.free, self.pointer)


def release_with(owner: object, cuda: CudaApi, device: int, release: Callable[[int], None], pointer: int) -> None:
    """Call `release` on the device with the last reference to `owner`, in any thread."""
    weakref.finalize(owner, _release, cuda, device, release, pointer).atexit = False


def _release(cuda: CudaApi, device: int, release: Callable[[int], None], pointer: int) -> None:
    with suppress(CudaError, DeviceLost), on_device(device, cuda):  # a device that is lost has taken it back
        release(pointer)
