"""The interface of a repository: a web server, a mirror, or a USB stick. None is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ota.errors import FetchError


class StartOver(FetchError):
    """The source cannot resume, or its file is not the one that the download started with."""


class RepositorySource(Protocol):
    """A repository as files. Paths are relative, such as `metadata/timestamp.json`."""

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a small file.

        Raises:
            NotInRepository: it does not exist.
            FetchError: it has more than `most_bytes`, or did not come.
        """

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes from `offset` of a file that has `length` bytes in all.

        Raises:
            NotInRepository: it does not exist.
            StartOver: it cannot be read from `offset`; ask again with 0.
            FetchError: it did not come whole. The caller asks for the rest.
        """
