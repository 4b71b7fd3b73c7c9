"""Device memory of the host CudaApi that other processes open by a handle, as CUDA IPC does.

Each allocation is a file without a name in /dev/shm. The file gets a name when the first handle to it is asked for,
and loses the name when the memory is freed, or when its process ends.
"""

from __future__ import annotations

import atexit
import itertools
import mmap
import os
import struct
from dataclasses import dataclass

_FOLDER = "/dev/shm"
_HANDLE = struct.Struct("<4sIQ48s")
_MAGIC = b"HIPC"
_numbers = itertools.count()


class NotExported(Exception):
    """No memory belongs to a handle, or memory cannot have one."""


@dataclass(slots=True)
class _File:
    fd: int
    nbytes: int
    name: str = ""


class ExportedMemory:
    """The allocations of a process, by their address."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        atexit.register(self._forget_names)

    def map(self, nbytes: int) -> tuple[mmap.mmap, int]:
        """Return new memory and the descriptor of its file; -1 = it has none, and cannot be exported."""
        try:
            fd = os.open(_FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return mmap.mmap(-1, nbytes), -1
        os.truncate(fd, nbytes)
        return mmap.mmap(fd, nbytes), fd

    def add(self, pointer: int, fd: int, nbytes: int) -> None:
        """Make memory known by its address."""
        self._files[pointer] = _File(fd, nbytes)

    def remove(self, pointer: int) -> None:
        """Forget memory; processes that have opened it keep its pages."""
        file = self._files.pop(pointer)
        self._forget_name(file)
        if file.fd >= 0:
            os.close(file.fd)

    def handle(self, pointer: int, device: int) -> bytes:
        """Return the 64 bytes of a handle.

        Raises:
            NotExported: the memory has no file.
        """
        file = self._files[pointer]
        if file.fd < 0:
            raise NotExported
        if not file.name:
            name = f"edge-serve-cuda-{os.getpid()}-{next(_numbers)}"
            # Python follows the link (linkat, AT_SYMLINK_FOLLOW) where a directory is given, which counts for nothing
            os.link(f"/proc/self/fd/{file.fd}", f"{_FOLDER}/{name}", src_dir_fd=file.fd)
            file.name = name
        return _HANDLE.pack(_MAGIC, device, file.nbytes, file.name.encode())

    def _forget_names(self) -> None:
        for file in self._files.values():
            self._forget_name(file)

    def _forget_name(self, file: _File) -> None:
        if file.name:
            os.unlink(f"{_FOLDER}/{file.name}")
            file.name = ""


def open_handle(handle: bytes) -> tuple[mmap.mmap, int]:
    """Map the memory of a handle. Return it and the number of its device.

    Raises:
        NotExported: no such memory exists (any more).
    """
    magic, device, nbytes, name = _HANDLE.unpack(handle)
    if magic != _MAGIC:
        raise NotExported
    try:
        fd = os.open(f"{_FOLDER}/{name.rstrip(bytes(1)).decode()}", os.O_RDWR | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise NotExported from error
    try:
        return mmap.mmap(fd, nbytes), device
    finally:
        os.close(fd)
