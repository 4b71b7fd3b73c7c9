"""Bodies: read whole, byte by byte, in odd pieces and with a tail; into ordinary memory and into leases."""

from __future__ import annotations

import gc
import mmap
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.protocol.http1.head import HeadParser, MessageLimits, RequestHead
from edge_serve.protocol.http1.reader import RequestReader
from tests.leases import Slot
from tests.protocol.http1_stream import check_nothing, grow_freely, one_by_one, read_stream

CHUNKED = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\n\r\n"


def post(body: bytes, path: bytes = b"/p") -> bytes:
    return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)


class Placing:
    """Places every body, and remembers where."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []

    def __call__(self, head: RequestHead, length: int) -> Lease | None:
        self.slots.append(Slot(length))
        return self.slots[-1]


def make_reader(place: Callable[[RequestHead, int], Lease | None], size: int = 4096) -> tuple[RequestReader, bytearray]:
    shared = bytearray(size)
    parser = HeadParser(MessageLimits())
    return RequestReader(parser, shared, memoryview(shared), place, grow_freely, check_nothing), shared


def receive(reader: RequestReader, data: bytes) -> bytes:
    """Give the reader what it has room for; returns the rest."""
    buffer = reader.buffer()
    taken = min(len(buffer), len(data))
    buffer[:taken] = data[:taken]
    reader.advance(taken)
    return data[taken:]


@pytest.mark.parametrize("size", [1, 100, 5000, 70_000, 700_000])
@pytest.mark.parametrize("buffer_size", [997, 65536])
def test_a_body_of_known_length(size: int, buffer_size: int) -> None:
    body = random.Random(size).randbytes(size)

    outcome = read_stream([post(body) + NEXT], buffer_size=buffer_size)

    assert outcome.seen == [("POST", "/p", body), ("GET", "/next", b"")]


def test_pipelined_requests_byte_by_byte() -> None:
    chunked = CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nX-Sum: t\r\n\r\n"
    expected = [("POST", "/p", b"12345"), ("POST", "/c", b"abc0123456789"), ("GET", "/next", b"")]

    assert read_stream([post(b"12345") + chunked + NEXT]).seen == expected
    assert read_stream(one_by_one(post(b"12345") + chunked + NEXT)).seen == expected


def test_random_streams_in_random_pieces() -> None:
    rng = random.Random(7)
    for _ in range(200):
        stream, expected = b"", []
        for _ in range(rng.randrange(1, 6)):
            body = rng.randbytes(rng.choice([0, 1, 10, 3000]))
            expected.append(("POST", "/p", body))
            stream += post(body) if rng.random() < 0.5 else _as_chunks(rng, body)
        pieces = []
        while stream:
            cut = rng.choice([1, 7, 100, 5000])
            pieces.append(stream[:cut])
            stream = stream[cut:]

        outcome = read_stream(pieces, buffer_size=rng.choice([64, 1000, 65536]))

        assert (outcome.end, outcome.seen) == ("open", expected)


def _as_chunks(rng: random.Random, body: bytes) -> bytes:
    out = b"POST /p HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"
    while body:
        cut = rng.randrange(1, 900)
        part, body = body[:cut], body[cut:]
        out += b"%x%b\r\n%b\r\n" % (len(part), rng.choice([b"", b";a", b';a="b;c"']), part)
    return out + b"000\r\n" + rng.choice([b"", b"X: y\r\n"]) + b"\r\n"


@pytest.mark.parametrize(
    ("coded", "status", "said"),
    [
        (b"ZZ\r\n", 400, "expected a hexadecimal number"),
        (b"\r\n", 400, "expected a hexadecimal number"),
        (b"0x1\r\na\r\n0\r\n\r\n", 400, "expected a hexadecimal number"),
        (b"1_0\r\n", 400, "expected a hexadecimal number"),
        (b"+1\r\na\r\n", 400, "expected a hexadecimal number"),
        (b"-1\r\n", 400, "expected a hexadecimal number"),
        (b" 1\r\na\r\n", 400, "expected a hexadecimal number"),
        (b"1 \r\na\r\n", 400, "expected a hexadecimal number"),
        (b"1;a\x00b\r\na\r\n", 400, "expected a hexadecimal number"),
        (b"1;a\rb\r\na\r\n", 400, "expected a hexadecimal number"),
        (b"10000000000000000\r\n", 400, "expected a hexadecimal number"),
        (b"1\na\n0\n\n", 400, "LF alone"),
        (b"1\r\na\n0\r\n\r\n", 400, "not followed by CR LF"),
        (b"1\r\nab\r\n0\r\n\r\n", 400, "not followed by CR LF"),
        (b"3\r\nab\r\n0\r\n\r\n", 400, "not followed by CR LF"),
        (b"0\r\nBad Trailer\r\n\r\n", 400, "not a header line"),
        (b"0\r\nA: b\r\n c\r\n\r\n", 400, "folded"),
        (b"0\r\nA: b\n\r\n", 400, "LF alone"),
        (b"0\r\ncontent-length: 3\r\n\r\n", 400, "belongs in the head"),
        (b"fffffff0\r\n", 413, "larger than"),
        (b"ffffffffffffffff\r\n", 413, "larger than"),
        (b"1;" + b"x" * 2000 + b"\r\n", 400, "chunk size line"),
        (b"1;" + b"x" * 2000, 400, "longer than 1024"),
        (b"0\r\n" + b"A: b\r\n" * 2000, 431, "trailer"),
        ((b"1;" + b"x" * 1000 + b"\r\na\r\n") * 17, 400, "chunk extensions"),
    ],
)  # fmt: skip
def test_broken_chunks(coded: bytes, status: int, said: str) -> None:
    whole = read_stream([CHUNKED + coded])
    split = read_stream(one_by_one(CHUNKED + coded))

    assert (whole.seen, whole.end, split.end) == ([], str(status), str(status))
    assert said in whole.error
    assert said in split.error or len(coded) > 1024  # a line that is too long need not be complete to be refused


def test_tritons_limit_of_chunks() -> None:
    at_the_limit = CHUNKED + b"1\r\na\r\n" * 65536 + b"0\r\n\r\n"
    beyond = CHUNKED + b"1\r\na\r\n" * 65537 + b"0\r\n\r\n"

    assert len(read_stream([at_the_limit]).seen[0][2]) == 65536
    refused = read_stream([beyond])
    assert (refused.end, refused.error) == (
        "400",
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.",
    )


def test_many_tiny_chunks_let_others_run() -> None:
    reader, _ = make_reader(Placing(), 1 << 16)
    rest = receive(reader, CHUNKED + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n")
    assert not rest
    calls = 0
    while reader.next() is None:
        assert reader.rested
        calls += 1

    assert calls == 5
    assert reader.body == b"a" * 5000


def test_a_placed_body_is_received_into_its_lease() -> None:
    place = Placing()
    reader, shared = make_reader(place)
    body = random.Random(1).randbytes(INLINE_BYTES)
    rest = receive(reader, post(body) + NEXT)
    assert reader.next() is None
    reader.save_unread()
    shared[:] = bytes(len(shared))

    assert reader.buffer().obj is place.slots[0].memory
    rest = receive(reader, rest)
    head = reader.next()

    assert head is not None
    assert (reader.body, reader.lease) == (body, place.slots[0])
    assert rest == NEXT
    assert isinstance(reader.body, memoryview)
    assert reader.body.obj is place.slots[0].memory


def test_a_placed_body_that_came_with_its_head() -> None:
    place = Placing()
    reader, _ = make_reader(place, 1 << 17)
    body = random.Random(2).randbytes(INLINE_BYTES)
    receive(reader, post(body) + post(b"short"))

    assert reader.next() is not None
    assert (reader.body, reader.lease) == (body, place.slots[0])
    assert reader.next() is not None
    assert (reader.body, reader.lease) == (b"short", None)
    assert len(place.slots) == 1


def test_an_unfinished_body_gives_its_lease_back() -> None:
    place = Placing()
    reader, _ = make_reader(place)
    receive(reader, post(bytes(INLINE_BYTES)))
    assert reader.next() is None

    reader.discard()
    reader.discard()

    assert place.slots[0].released == 1


def test_a_finished_body_keeps_its_lease() -> None:
    place = Placing()
    reader, _ = make_reader(place, 1 << 17)
    receive(reader, post(bytes(INLINE_BYTES)))
    assert reader.next() is not None

    reader.discard()

    assert place.slots[0].released == 0


def test_a_body_that_is_not_welcome() -> None:
    def refuse(head: RequestHead, length: int) -> Lease | None:
        raise InvalidArgument(f"no room for {length}")

    shared = bytearray(4096)
    reader = RequestReader(HeadParser(MessageLimits()), shared, memoryview(shared), refuse, grow_freely, check_nothing)
    receive(reader, post(bytes(INLINE_BYTES)))

    with pytest.raises(InvalidArgument, match="no room for 32768"):
        reader.next()


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_declared_length_alone_takes_no_memory() -> None:
    reader, _ = make_reader(lambda head, length: None)
    before = resident()
    receive(reader, b"POST / HTTP/1.1\r\nContent-Length: 200000000\r\n\r\n")
    assert reader.next() is None

    assert 0 < len(reader.buffer()) <= 1 << 20
    assert resident() - before < 10_000_000


def test_clients_that_await_100_continue() -> None:
    reader, _ = make_reader(Placing())
    receive(reader, b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.awaits_continue
    reader.save_unread()

    receive(reader, b"a")
    assert reader.next() is None
    assert not reader.awaits_continue


def test_an_idle_connection_owns_no_buffer() -> None:
    reader, shared = make_reader(Placing())
    receive(reader, NEXT)
    assert reader.next() is not None
    assert reader.next() is None
    reader.save_unread()

    assert reader.buffer().obj is shared
    assert all(one is shared for one in gc.get_referents(reader) if isinstance(one, bytearray))
    assert not reader.in_head
    assert not reader.in_body
