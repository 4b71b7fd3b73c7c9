"""Interface of a client's socket; `socket.socket` and `tls.TlsSocket` have it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from edge_serve.messages.tensors import Buffer


class StreamSocket(Protocol):
    """A non-blocking stream socket.

    A call that would block raises BlockingIOError, and a call on a broken connection another OSError.
    """

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: Buffer, /) -> int: ...
    def sendmsg(self, buffers: Iterable[Buffer], /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...
