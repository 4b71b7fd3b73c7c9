"""Memory as a device sees it that it is registered with: the pages of that moment, whatever becomes of them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.vmsplice.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
_libc.tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)
_libc.vmsplice.restype = _libc.tee.restype = ctypes.c_ssize_t


class PinnedPages:
    """Pipes hold the pages (vmsplice(2)): what the program writes is seen as long as its pages are these. After
    MADV_REMOVE the program has other pages, and the device goes on with the old ones.
    """

    _CHUNK = 1 << 16  # bytes of a pipe: reading some of them costs reading all; 1 MiB is the most without privileges

    def __init__(self, start: int, nbytes: int) -> None:
        self._start = start
        self._scratch = self._pipe()
        self._chunks: list[int] = []
        for at in range(start, start + nbytes, self._CHUNK):
            pipe, size = self._pipe(), min(self._CHUNK, start + nbytes - at)
            vector = (ctypes.c_size_t * 2)(at, size)  # struct iovec
            if _libc.vmsplice(pipe[1], vector, 1, 0) != size:
                raise OSError(ctypes.get_errno(), "vmsplice: the start of the memory must lie on a page")
            os.close(pipe[1])
            self._chunks.append(pipe[0])

    def read(self, address: int, nbytes: int) -> bytes:
        first, last = ((at - self._start) // self._CHUNK for at in (address, address + nbytes - 1))
        data = b"".join(self._content(pipe) for pipe in self._chunks[first : last + 1])
        at = address - self._start - first * self._CHUNK
        return data[at : at + nbytes]

    def write(self, address: int, data: bytes) -> None:
        """Write to the pages, not to what has replaced them."""
        before = ctypes.string_at(address, len(data))
        ctypes.memmove(address, data, len(data))
        written = self.read(address, len(data))
        at = 0
        while at < len(data):
            end = min(len(data), at + mmap.PAGESIZE - (address + at) % mmap.PAGESIZE)
            if written[at:end] != data[at:end]:
                ctypes.memmove(address + at, before[at:end], end - at)
            at = end

    def close(self) -> None:
        for end in (*self._scratch, *self._chunks):
            os.close(end)

    def _content(self, pipe: int) -> bytes:
        size, data = _libc.tee(pipe, self._scratch[1], self._CHUNK, 0), b""
        while len(data) < size:
            data += os.read(self._scratch[0], size - len(data))
        return data

    def _pipe(self) -> tuple[int, int]:
        pipe = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, self._CHUNK)
        return pipe
