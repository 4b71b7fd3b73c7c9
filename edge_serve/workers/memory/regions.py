"""Shared memory of clients, as the front end holds it: registered regions, found by name. It opens none of them.

Rules and texts: triton-inference-server/server src/shared_memory_manager.cc. A region of system shared memory is a file
in /dev/shm that a client made (`shm_open`). Its descriptor is passed on to the workers that need it (`arena_exports`),
and only those read and write it (`ClientRegion`). Memory of a GPU has a handle instead (`cuda_regions`). Both share one
name space.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import stat
import weakref
from typing import Any, TypeVar

from edge_serve.aio.offload import offload
from edge_serve.devices.device import Gpus
from edge_serve.errors import (
    AlreadyExists,
    EdgeServeError,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    with_advice,
)
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.shared_memory import CudaRegionStatus, Place, RegionStatus
from edge_serve.messages.tensors import Shared
from edge_serve.workers.memory.cuda_regions import CudaRegion, check_region, try_handle
from edge_serve.workers.wire.frames import FrameKind
from edge_serve.workers.wire.layout import OFFSET_MASK

#: each costs a descriptor here and in each worker that uses it
MOST_REGIONS = 1024

_DIRECTORY = "/dev/shm"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: of the files by which Triton's Python backend talks to its processes
_RESERVED = "triton_python_backend_shm_region_"
_UINT64_MAX = 2**64 - 1


class Region:
    """A file that a client registered. It is open as long as anything refers to it: its entry, or a request.

    So it outlives its entry until the last request that uses it is answered and forgotten.
    """

    __slots__ = ("__weakref__", "fd", "start", "status")

    kind = FrameKind.REGION
    word = "system"

    def __init__(self, status: RegionStatus, fd: int) -> None:
        self.status = status
        self.start = status.offset
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that go with the REGION frame."""
        return (self.fd,)

    def value(self) -> dict[str, Any]:
        """Return the content of the REGION frame."""
        return {"name": self.status.name, "offset": self.status.offset, "byte_size": self.status.byte_size}


AnyRegion = TypeVar("AnyRegion", Region, CudaRegion)


class SharedMemoryRegions:
    """The registered regions; implements `messages.shared_memory.Regions`.

    Args:
        directory: where the system has its shared memory files.

    Attributes:
        gpus: the GPUs of the machine.
    """

    def __init__(self, directory: str = _DIRECTORY) -> None:
        self.directory = directory
        self.gpus = Gpus()
        self._regions: dict[str, Region | CudaRegion] = {}
        self._trying = asyncio.Lock()

    def status(self, name: str) -> list[RegionStatus]:
        """Return one region of system shared memory, or all if the name is "".

        Raises:
            NotFound: there is none of this name.
        """
        return [region.status for region in self._find(name, Region)]

    def cuda_status(self, name: str) -> list[CudaRegionStatus]:
        """Return one region of a GPU's memory, or all if the name is "".

        Raises:
            NotFound: there is none of this name.
        """
        return [region.status for region in self._find(name, CudaRegion)]

    def _find(self, name: str, kind: type[AnyRegion]) -> list[AnyRegion]:
        if not name:
            return [region for region in self._regions.values() if isinstance(region, kind)]
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find {kind.word.lower()} shared memory region: '{name}'")
        if not isinstance(region, kind):
            raise NotFound(
                f"The region named '{name}' is registered as {region.word} shared memory, not {kind.word} shared memory"
            )
        return [region]

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the file `key`.

        Raises:
            InvalidArgument: a key that may not be, or a part that is not in the file. AlreadyExists: the name is taken.
            Internal: there is no such file that may be opened. Unavailable: there are too many regions.
        """
        file_name = _file_name(name, key)
        self._check_free(name)
        fd = self._open(file_name, key)
        try:
            if not name:
                raise InvalidArgument("'region name' is necessary to register system shared memory region")
            _check(fd, name, offset, byte_size)
        except EdgeServeError:
            os.close(fd)
            raise
        self._regions[name] = Region(RegionStatus(name, key, offset, byte_size), fd)

    async def register_cuda(self, name: str, handle: bytes, device: int, byte_size: int) -> None:
        """Register memory of a GPU by its IPC handle, once a process has opened it. One process runs at a time.

        Raises:
            InvalidArgument, Unsupported, Internal: see `cuda_regions`. AlreadyExists, Unavailable: as `register`.
        """
        region = CudaRegion(CudaRegionStatus(name, device, byte_size), handle)
        check_region(region, self.gpus)
        async with self._trying:
            self._check_free(name)
            await offload(try_handle, region)
            self._check_free(name)
        self._regions[name] = region

    def _check_free(self, name: str) -> None:
        """Check that a region of this name may be added.

        Raises:
            AlreadyExists: the name is taken. Unavailable: there are too many regions.
        """
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= MOST_REGIONS:
            raise Unavailable(
                f"failed to register shared memory region '{name}': {len(self._regions)} are registered, at most "
                f"{MOST_REGIONS} can be; unregister those that are not used any more"
            )

    def _open(self, file_name: str, key: str) -> int:
        """Open a regular file in the directory itself, and follow no link. Return its descriptor.

        Raises:
            Internal: there is none, or this process may not read and write it.
        """
        failure = Internal(f"Unable to open shared memory region: '{key}'")
        if "/" in file_name or file_name in (".", ".."):
            raise failure
        try:
            fd = os.open(os.path.join(self.directory, file_name), _FLAGS)
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise failure from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise failure
        return fd

    def unregister(self, name: str) -> None:
        """Remove a region of system shared memory, or all when ""; one that is not there is fine. Requests that use it
        go on."""
        self._remove(name, Region)

    def unregister_cuda(self, name: str) -> None:
        """Remove a region of a GPU's memory, or all; see `unregister`."""
        self._remove(name, CudaRegion)

    def _remove(self, name: str, kind: type[Region | CudaRegion]) -> None:
        for one in [name] if name else list(self._regions):
            if isinstance(self._regions.get(one), kind):
                del self._regions[one]

    def find(self, name: str, offset: int, size: int, label: str = "") -> Place:
        """See `messages.shared_memory.Regions.find`."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name}'")
        there = region.status.byte_size
        if offset >= there:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
        if offset + size > _UINT64_MAX:
            raise InvalidArgument(
                f"Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value "
                f"({_UINT64_MAX}) for region '{name}'"
            )
        if not 0 < offset + size <= there:  # Triton refuses no bytes at offset 0, too
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
        return Place(region, region.start + offset, size, label)

    def resolve(self, request: InferRequest) -> None:
        """Look up the names in a request that was decoded where no region is known.

        Raises:
            NotFound, InvalidArgument: as `find`.
        """
        for tensor in request.inputs:
            if type(tensor) is Shared and isinstance(tensor.region, str):
                place = self.find(tensor.region, tensor.place, len(tensor.data))
                tensor.region, tensor.place = place.region, place.offset
        for output in request.outputs:
            place_there = output.place
            if place_there is not None and isinstance(place_there.region, str):
                output.place = self.find(place_there.region, place_there.offset, place_there.size, place_there.label)


def _file_name(name: str, key: str) -> str:
    """Return the name of the file that `shm_open(key)` means.

    Raises:
        InvalidArgument: none, or one of Triton's own.
    """
    file_name = key.lstrip("/")
    if key and not file_name:  # without a key, Triton tries to open it
        raise InvalidArgument(f"cannot register shared memory region '{name}' - invalid shm key '{key}'")
    if file_name.startswith(_RESERVED):
        raise InvalidArgument(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{_RESERVED}'"
        )
    return file_name


def _check(fd: int, name: str, offset: int, byte_size: int) -> None:
    """Check that the part is in the file, could be mapped, and has offsets that the workers' frames can express.

    Raises:
        InvalidArgument: with the words that Triton has for what its `mmap` refuses.
    """
    end = offset + byte_size
    invalid = f"failed to register shared memory region '{name}': invalid args"
    if end > os.fstat(fd).st_size:
        raise InvalidArgument(invalid)
    if end > OFFSET_MASK:  # the bits above number the region: such an offset would be in another one
        raise InvalidArgument(with_advice(invalid, f"it ends at byte {end}, expected at most {OFFSET_MASK}"))
    if not byte_size or offset % mmap.ALLOCATIONGRANULARITY:
        raise InvalidArgument(
            f"failed to register shared memory region '{name}': unable to process address spaceInvalid argument"
        )
