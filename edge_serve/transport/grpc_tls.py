"""A gRPC connection over TLS: the plain one, and a look at what OpenSSL has decrypted already."""

from __future__ import annotations

from edge_serve.transport.grpc_asked import Understanding
from edge_serve.transport.grpc_connection import GrpcConnection
from edge_serve.transport.grpc_shared import Shared
from edge_serve.transport.tls import TlsSocket


class TlsGrpcConnection(GrpcConnection):
    """Bytes that OpenSSL holds do not make the descriptor readable, so they are asked for."""

    __slots__ = ("_tls",)

    def __init__(self, sock: TlsSocket, shared: Shared, understanding: Understanding) -> None:
        super().__init__(sock, shared, understanding)
        self._tls = sock
        if sock.pending():  # the first frames came with the end of the handshake
            shared.loop.call_soon(self._on_pending)

    def _on_readable(self) -> None:
        super()._on_readable()
        while self._reading and self._tls.pending():
            super()._on_readable()

    def _set_reading(self, wanted: bool) -> None:
        begins = wanted and not self._reading
        super()._set_reading(wanted)
        if begins and self._tls.pending():
            self.loop.call_soon(self._on_pending)

    def _on_pending(self) -> None:
        if self._reading and self._tls.pending():
            self._on_readable()
