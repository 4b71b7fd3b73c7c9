"""The encrypting socket against Python's own client, and contexts from files."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from select import select

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.transport.sockets.tls import TlsFiles, TlsSocket, make_context, wrap
from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def connected(
    authority: Authority, client: Pair | None = None, *, demanded: bool = False
) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Our socket, and a client's that blocks."""
    mine = authority.issue()
    files = TlsFiles(str(mine.certificate), str(mine.key), str(authority.root), demanded)
    here, there = socket.socketpair()
    here.setblocking(False)
    with ExitStack() as stack:
        results: list[ssl.SSLSocket] = []
        context = authority.client(client, "http/1.1")

        def connect() -> None:
            results.append(context.wrap_socket(there, server_hostname="localhost"))

        thread = threading.Thread(target=connect)
        thread.start()
        wrapped = wrap(here, make_context(files, ("http/1.1",)))
        while True:
            try:
                wrapped.do_handshake()
                break
            except ssl.SSLWantReadError:
                select([wrapped], [], [], 5)
        thread.join()
        mine_socket = TlsSocket(wrapped)
        stack.callback(results[0].close)
        stack.callback(mine_socket.close)
        results[0].settimeout(5)
        yield mine_socket, results[0]


def receive(sock: TlsSocket, size: int, buffer: int = 100_000) -> bytes:
    """`size` bytes, waiting for the descriptor only when nothing is pending."""
    data = b""
    memory = memoryview(bytearray(buffer))
    while len(data) < size:
        if not sock.pending():
            assert select([sock], [], [], 5)[0]
        with suppress(BlockingIOError):
            received = sock.recv_into(memory)
            if not received:
                break
            data += memory[:received]
    return data


def test_bytes_pass_both_ways(authority: Authority) -> None:
    with connected(authority) as (ours, theirs):
        theirs.sendall(b"question")
        assert receive(ours, 8) == b"question"
        assert ours.send(b"answer") == 6
        assert theirs.recv(100) == b"answer"
        assert theirs.selected_alpn_protocol() == "http/1.1"
        assert ours.certificate is None


def test_nothing_there_is_a_blocking_error(authority: Authority) -> None:
    with connected(authority) as (ours, _), pytest.raises(BlockingIOError):
        ours.recv_into(memoryview(bytearray(10)))


@pytest.mark.parametrize("buffer", [1000, 16_384, 20_000, 1_000_000])
def test_a_small_buffer_leaves_bytes_pending_and_loses_none(authority: Authority, buffer: int) -> None:
    sent = bytes(range(256)) * 2000
    with connected(authority) as (ours, theirs):
        thread = threading.Thread(target=theirs.sendall, args=(sent,))
        thread.start()
        assert receive(ours, len(sent), buffer) == sent
        thread.join()
        assert ours.pending() == 0


def test_a_slow_reader_gets_everything_in_order(authority: Authority) -> None:
    """Bytes that the kernel does not take are sent again in other pieces, as by the send queue."""
    parts: list[memoryview] = [memoryview(bytes([n]) * size) for n, size in enumerate((10, 300_000, 5, 0, 20_000, 7))]
    everything = b"".join(parts)
    with connected(authority) as (ours, theirs):
        got = bytearray()

        def read() -> None:
            while len(got) < len(everything):
                got.extend(theirs.recv(65536))

        thread = threading.Thread(target=read)
        waits = 0
        while parts:
            try:
                sent = ours.sendmsg(iter(parts))
            except BlockingIOError:
                waits += 1
                if not thread.is_alive():
                    thread.start()
                select([], [ours], [], 5)
                continue
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]
        thread.join(5)
        assert waits
        assert bytes(got) == everything


def test_a_client_that_says_goodbye_is_an_end_of_file(authority: Authority) -> None:
    with connected(authority) as (ours, theirs):
        theirs.sendall(b"x" * 16_384)
        with suppress(ssl.SSLWantReadError, TimeoutError):
            theirs.settimeout(0)
            theirs.unwrap()
        memory = memoryview(bytearray(100_000))
        select([ours], [], [], 5)
        assert ours.recv_into(memory) == 16_384
        assert ours.recv_into(memory) == 0
        assert ours.recv_into(memory) == 0


def test_the_client_reads_a_goodbye(authority: Authority) -> None:
    with connected(authority) as (ours, theirs):
        ours.send(b"last")
        ours.shutdown(socket.SHUT_WR)
        theirs.suppress_ragged_eofs = False  # type: ignore[attr-defined]  # an end without goodbye would be an error
        assert theirs.recv(10) == b"last"
        assert theirs.recv(10) == b""


def test_garbage_is_an_oserror(authority: Authority) -> None:
    with connected(authority) as (ours, theirs):
        socket.socket.send(theirs, b"GET / HTTP/1.1\r\n\r\n" * 10)
        select([ours], [], [], 5)
        with pytest.raises(OSError) as found:
            ours.recv_into(memoryview(bytearray(100)))
        assert not isinstance(found.value, BlockingIOError)


def test_the_clients_certificate_is_known(authority: Authority) -> None:
    pair = authority.issue("camera-3", "Acme")
    with connected(authority, pair, demanded=True) as (ours, _):
        assert ours.certificate is not None
        assert ours.certificate.fingerprint == pair.fingerprint
        assert ours.certificate.subject == {("CN", "camera-3"), ("O", "Acme")}


def test_files_that_are_no_good_are_named(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.issue(), authority.issue()
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for files, text in (
        (TlsFiles("/nowhere", str(one.key)), "cannot read '/nowhere'"),
        (TlsFiles(str(one.certificate), str(other.key)), "key values mismatch"),
        (TlsFiles(str(empty), str(one.key)), "no certificate and its key"),
        (TlsFiles(str(one.certificate), str(one.key), str(empty)), "has no certificates"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            make_context(files)
