"""A repository in a directory: a USB stick, or a mounted file system. Follows no symbolic link below it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ota.errors import FetchError, NotInRepository
from ota.fetch.failures import RequestFailed

BLOCK_BYTES = 256 * 1024


class DirectorySource:
    """The repository in a directory, opened at its first use.

    The directory stays open, so that another one that is mounted in its place is not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = -1

    def __str__(self) -> str:
        return str(self._path)

    def close(self) -> None:
        """Close the directory, so that the file system can be unmounted."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> DirectorySource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a small file. See `RepositorySource`."""
        with self._file(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > most_bytes:
                raise RequestFailed(f"{self._path / path} has {size} bytes, expected at most {most_bytes}", again=False)
            return b"".join(self._blocks(descriptor, path, 0, size))

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes from `offset` of a file that has `length` bytes in all. See `RepositorySource`."""
        with self._file(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size != length:
                raise RequestFailed(
                    f"{self._path / path} has {size} bytes, expected {length}: copy to the stick again", again=False
                )
            yield from self._blocks(descriptor, path, offset, length)

    def _blocks(self, descriptor: int, path: str, offset: int, end: int) -> Iterator[bytes]:
        while offset < end:
            block = os.pread(descriptor, min(BLOCK_BYTES, end - offset), offset)
            if not block:
                raise RequestFailed(f"{self._path / path} ended after {offset} of {end} bytes", again=False)
            offset += len(block)
            yield block

    @contextlib.contextmanager
    def _file(self, path: str) -> Iterator[int]:
        """Open a regular file. Turn errors of the system into those of edge-ota."""
        if self._root < 0:
            self._root = self._open_root()
        try:
            descriptor = self._open_below(path, os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise RequestFailed(f"{self._path / path} is not a regular file", again=False)
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failure(error, path) from error

    def _open_root(self) -> int:
        advice = "expected a directory made by 'edge-ota publish export'"
        try:
            root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RequestFailed(f"{self._path}: {error.strerror}; {advice}", again=False) from None
        self._root = root
        if not self._is_there():
            self.close()
            raise RequestFailed(f"{self._path} has no metadata/: {advice}", again=False)
        return root

    def _open_below(self, path: str, flags: int) -> int:
        """Open a path part by part, so that no part can be a link."""
        parts = path.split("/")
        if not all(part and part not in (".", "..") for part in parts):
            raise RequestFailed(f"{path!r} is not a path below {self._path}", again=False)
        base = flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = self._root
        try:
            for part in parts[:-1]:
                inner = os.open(part, base | os.O_DIRECTORY, dir_fd=folder)
                if folder != self._root:
                    os.close(folder)
                folder = inner
            return os.open(parts[-1], base, dir_fd=folder)
        finally:
            if folder != self._root:
                os.close(folder)

    def _failure(self, error: OSError, path: str) -> FetchError:
        where = self._path / path
        if error.errno == errno.ENOENT and self._is_there():
            return NotInRepository(f"{where} does not exist")
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return RequestFailed(
                f"{where} is reached through a symbolic link or a file: expected plain directories", again=False
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            return RequestFailed(f"{where}: {error.strerror}: make it readable for the user edge-ota", again=False)
        return RequestFailed(
            f"{self._path}: cannot read {path} ({error.strerror}): pulled out, or defective?", again=False
        )

    def _is_there(self) -> bool:
        try:
            os.close(self._open_below("metadata", os.O_DIRECTORY))
        except OSError:
            return False
        return True
