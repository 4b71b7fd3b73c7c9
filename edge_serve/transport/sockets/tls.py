"""TLS over bare sockets (docs/adr/0013): TLS contexts from files, and a socket that encrypts.

A door with TLS differs from one without in three points:

1. An accepted socket goes through `handshakes.Handshakes`, which returns a `TlsSocket` for it.
2. After `recv_into`, and when it begins to read again, it looks at `pending`: bytes that OpenSSL holds already do not
   make the descriptor readable.
3. It keeps `make_context` in a `reloaded.Reloaded`: new connections get new certificates, old ones live on.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterable, Sequence

from edge_serve.errors import InvalidArgument
from edge_serve.files import read_small
from edge_serve.messages.peer import Certificate
from edge_serve.messages.tensors import Buffer
from edge_serve.records import frozen

#: bytes of the longest TLS record (RFC 8446 5.1); OpenSSL reads and writes one in each call
_RECORD = 16 * 1024

#: bytes moved in one call, so that a fast peer does not block the loop
_AT_ONCE = 16 * _RECORD


@frozen
class TlsFiles:
    """The PEM files of a door.

    Attributes:
        certificate: the server's certificate chain.
        clients: CA certificates for client certificates; "" = no client certificates are requested.
        demanded: a client without a certificate is refused; otherwise its certificate is optional.
    """

    certificate: str
    key: str
    clients: str = ""
    demanded: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The files to watch for changes."""
        return tuple(path for path in (self.certificate, self.key, self.clients) if path)


def tls_files(prefix: str, certificate: str, key: str, clients: str, *, mutual: bool) -> TlsFiles:
    """Return the files of one door; `prefix` is that of its command line options.

    Raises:
        InvalidArgument: a needed file is not configured.
    """
    needed = {"server-cert": certificate, "server-key": key} | ({"root-cert": clients} if mutual else {})
    for name, path in needed.items():
        if not path:
            raise InvalidArgument(f"TLS needs {prefix}-{name}: the file was not named")
    return TlsFiles(certificate, key, clients, demanded=mutual)


def make_context(files: TlsFiles, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the context for new connections: TLS 1.2 and 1.3, no renegotiation, no compression.

    Raises:
        InvalidArgument: a file cannot be read, or does not contain what it should.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    for path in files.paths:
        _check_readable(path)
    try:  # without a password OpenSSL would ask for one on the terminal
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(
            f"'{files.certificate}' and '{files.key}' are no certificate and its key without a password, in PEM: "
            f"{_reason(error)}"
        ) from error
    if files.clients:
        context.verify_mode = ssl.CERT_REQUIRED if files.demanded else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.clients)
        except ssl.SSLError as error:
            raise InvalidArgument(f"'{files.clients}' has no certificates in PEM: {_reason(error)}") from error
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _check_readable(path: str) -> None:
    try:
        read_small(path)
    except OSError as error:
        raise InvalidArgument(f"TLS: cannot read '{path}': {error.strerror}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")


class TlsSocket:
    """A socket after its TLS handshake, as a `StreamSocket`.

    A read never waits for a write, nor a write for a read: there is no renegotiation, and a client that requests new
    keys (RFC 8446 4.6.3) without reading is disconnected.
    """

    __slots__ = ("_ended", "_received_ns", "_sock")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._ended = False
        self._received_ns = time.monotonic_ns()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._sock.fileno()

    @property
    def certificate(self) -> Certificate | None:
        """The client's verified certificate, if there is one."""
        data = self._sock.getpeercert(binary_form=True)
        fields = self._sock.getpeercert()
        return Certificate.of(data, fields) if data and fields else None

    def pending(self) -> int:
        """Return the number of decrypted bytes, which `recv_into` returns although the descriptor is not readable."""
        return self._sock.pending()

    @property
    def silent_ms(self) -> int:
        """Milliseconds since `recv_into` last returned bytes."""
        return (time.monotonic_ns() - self._received_ns) // 1_000_000

    def recv_into(self, buffer: memoryview, /) -> int:
        """Decrypt into `buffer`, and return the number of bytes; 0: the client sends no more.

        Raises:
            BlockingIOError: no bytes have arrived. OSError: the connection is broken, or the bytes are not TLS.
        """
        if self._ended:
            return 0
        received = filled = self._receive(buffer)
        end = min(len(buffer), _AT_ONCE)
        while received == _RECORD and filled < end:  # a full record: more has been sent
            try:
                received = self._receive(buffer[filled:])
            except BlockingIOError:
                break
            filled += received
        self._ended = not received
        if filled:
            self._received_ns = time.monotonic_ns()
        return filled

    def _receive(self, buffer: memoryview) -> int:
        try:
            return self._sock.recv_into(buffer)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError as error:
            raise ConnectionAbortedError("the client requests new TLS keys without reading") from error

    def send(self, data: Buffer, /) -> int:
        """Encrypt and send, and return the number of bytes taken. The others must come again in the next call.

        Raises:
            BlockingIOError: the kernel takes no more. OSError: the connection is broken.
        """
        view = memoryview(data).cast("B")
        size = len(view)
        taken = 0
        while taken < size and taken < _AT_ONCE:
            try:
                taken += self._sock.send(view[taken:])
            except ssl.SSLWantWriteError:
                if not taken:
                    raise BlockingIOError from None
                break
            except ssl.SSLWantReadError as error:
                raise ConnectionAbortedError("TLS cannot send before it receives") from error
        return taken

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        """Send buffers, and return the number of bytes taken.

        The first ones are joined up to the size of a record, because OpenSSL demands that a record which it could not
        send comes again whole. A large buffer is not copied.
        """
        parts: list[memoryview] = []
        size = 0
        for buffer in buffers:
            part = memoryview(buffer).cast("B")
            if not parts and len(part) >= _RECORD:
                return self.send(part)
            parts.append(part[: _RECORD - size])
            size += len(parts[-1])
            if size == _RECORD:
                break
        return self.send(b"".join(parts))

    def shutdown(self, how: int, /) -> None:
        """Send `close_notify`, then shut down. Bytes received afterwards are not decrypted."""
        self._send_close_notify()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Send `close_notify`, if that is possible at once, and close."""
        self._send_close_notify()
        self._sock.close()

    def _send_close_notify(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was said
            self._sock.unwrap()


def wrap(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Wrap a socket whose TLS handshake is to start. Do not use `sock` afterwards; it is closed if this fails.

    Raises:
        OSError: the client has disconnected.
    """
    try:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    except OSError:
        sock.close()
        raise
