"""Reads the small files that an operator names: regular ones of bounded size, so no read blocks or fills memory."""

from __future__ import annotations

import errno
import os
import stat

#: bytes; a file of tokens for ten thousand clients takes one
LONGEST = 16 << 20
#: files of /proc refuse to be asked for megabytes
_AT_ONCE = 64 << 10


def read_small(path: str | os.PathLike[str]) -> bytes:
    """Return what a regular file holds. Opening a FIFO would wait for its writer, and a device may have no end.

    Raises:
        OSError: it cannot be read, is no regular file, or is longer than `LONGEST`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        data = bytearray()
        while block := file.read(_AT_ONCE):
            data += block
            if len(data) > LONGEST:
                raise OSError(errno.EFBIG, f"it is longer than {LONGEST} bytes", path)
    return bytes(data)
