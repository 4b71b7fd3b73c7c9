"""A host CudaApi that notes its copies."""

from __future__ import annotations

from dataclasses import dataclass

from tests.backends.cuda.host import HostCuda


@dataclass(frozen=True)
class Copied:
    """One `memcpy_async`."""

    target: int
    source: int
    nbytes: int
    stream: int


class CountingCuda(HostCuda):
    """Notes each copy.

    Attributes:
        copies: in the order in which they were enqueued.
    """

    def __init__(self, *, integrated: bool = False) -> None:
        super().__init__(integrated=integrated)
        self.copies: list[Copied] = []

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.copies.append(Copied(target, source, nbytes, stream))
        super().memcpy_async(target, source, nbytes, stream)
