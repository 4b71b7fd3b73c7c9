"""Framing compared with h11 and llhttp over seeded mutations of a corpus.

What matters is request smuggling: a proxy in front may read the way one of them does. So wherever this reader takes a
request, both must have taken the same one: same method, target and body, and therefore the same beginning of the next.
This reader may refuse what they take. Where it may take what one of them does not, the reason is in `FORGIVEN_*`.

EDGE_SERVE_FUZZ_SECONDS=600 makes it a long run with a fresh seed, which it prints.
"""

from __future__ import annotations

import os
import random
import time

import h11
import httptools
import pytest

from tests.examples import seeds
from tests.protocol.http1_stream import Outcome, Seen, read_stream

#: Their reasons for refusing what is taken here, as they word them.
FORGIVEN_H11 = (
    "Missing mandatory Host: header",  # Triton answers without one, and so do we; there are no virtual hosts here
    "no request line received",  # empty lines before a request: RFC 9112 2.2 wants them ignored, h11 does not
    "illegal request line",  # the same, when the empty line is followed by a request; and a target beyond ASCII
)
FORGIVEN_LLHTTP = (
    "Pause on CONNECT/Upgrade",  # `Upgrade` is ignored, as RFC 9110 7.8 allows; llhttp hands over to the caller
    "Invalid char in url",  # a target beyond ASCII, which Triton answers; no framing depends on it
)
#: llhttp refuses methods that it does not know; ours are any token, and the application refuses them.
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"))

_NEXT = b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
_POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n"

CORPUS = (
    b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n" + _NEXT,
    _POST + b"Content-Length: 5\r\n\r\nhello" + _NEXT,
    _CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n" + _NEXT,
    _CHUNKED + b"\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n" + _NEXT,
    _CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + _NEXT,
    _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!" + _NEXT,
    _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + _NEXT,
    _POST + b"Transfer-Encoding:\tchunked\r\n\r\n1\r\nZ\r\nQ\r\n\r\n" + _NEXT,
    _POST + b"Content-Length : 5\r\n\r\nhello" + _NEXT,
    b"POST /a HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nabGET /n HTTP/1.0\r\n\r\n",
    b"GET http://h/x?y HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: h\r\nX-A: one\r\n two\r\n\r\n",
    b"\r\n" + _NEXT,
    b"GET /m\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n" + _NEXT,
    _POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" + _NEXT,
)

PIECES = (
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"\x00", b"\x0b", b"\x7f", b"\x80", b"\xff", b":", b",", b";",
    b"=", b'"', b"0", b"1", b"5", b"a", b"F", b"-", b"+", b"0x", b"_", b"chunked", b"identity", b"gzip", b"close",
    b"keep-alive", b"upgrade", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"GET", b"Content-Length: 3\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n", b"Host: x\r\n", b"0\r\n\r\n", b"1\r\nX\r\n", b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
)  # fmt: skip


def mutate(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(CORPUS))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                del data[at : at + rng.choice((1, 1, 2, 8))]
            case 2:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 3:
                piece = rng.choice(PIECES)
                data[at : at + len(piece)] = piece
            case 4:
                other = rng.choice(CORPUS)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                lines = bytes(data).split(b"\r\n")
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                data[:] = b"\r\n".join(lines)
    return bytes(data)


def read_with_h11(data: bytes) -> Outcome:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    outcome = Outcome()
    try:
        while True:
            event = connection.next_event()
            match event:
                case h11.Request():
                    method, target, body = event.method.decode(), event.target.decode("latin-1"), bytearray()
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    outcome.seen.append((method, target, bytes(body)))
                    connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is not h11.DONE:
                        outcome.end = "closed"
                        return outcome
                    connection.start_next_cycle()
                case _:
                    return outcome
    except h11.RemoteProtocolError as error:
        outcome.end, outcome.error = "error", str(error)
    return outcome


class _Llhttp:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.closed = False
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.target = b""
        self.body = b""

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.closed:
            self.seen.append((self.parser.get_method().decode(), self.target.decode("latin-1"), self.body))
        self.closed = self.closed or not self.parser.should_keep_alive()


def read_with_llhttp(data: bytes) -> Outcome:
    oracle = _Llhttp()
    outcome = Outcome(oracle.seen)
    try:
        oracle.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        outcome.error = "Pause on CONNECT/Upgrade"
        outcome.end = "error"
    except httptools.HttpParserError as error:
        outcome.end, outcome.error = "error", str(error)
    return outcome


def disagreement(data: bytes) -> str | None:
    """Return the reason why this stream of bytes is dangerous; None if it is not."""
    ours = read_stream([data])
    for name, theirs, forgiven in (
        ("h11", read_with_h11(data), FORGIVEN_H11),
        ("llhttp", read_with_llhttp(data), FORGIVEN_LLHTTP),
    ):
        for number, request in enumerate(ours.seen):
            if number < len(theirs.seen):
                if theirs.seen[number] != request:
                    return f"{name} read {theirs.seen[number]}, we read {request}"
            elif theirs.end == "closed" and ours.heads[number - 1].version == "1.0":
                break  # h11 closes after an HTTP/1.0 request even if it asks for keep-alive; nothing is misread
            elif name == "llhttp" and theirs.error and request[0] not in METHODS:
                break
            elif not theirs.error:
                return f"{name} waits for more, we read {request}"
            elif not any(reason in theirs.error for reason in forgiven):
                return f"{name} says {theirs.error!r}, we read {request}"
            else:
                break
        else:
            if ours.end == "incomplete" and len(theirs.seen) > len(ours.seen):
                return f"{name} read {theirs.seen[len(ours.seen)]}, we wait for more"
    return None


def check(seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        data = mutate(rng)
        problem = disagreement(data)
        assert problem is None, f"{problem}\nseed {seed}, bytes {data!r}"


@pytest.mark.parametrize("data", CORPUS)
def test_the_corpus(data: bytes) -> None:
    assert disagreement(data) is None


@seeds(2, 5)
def test_mutations(seed: int) -> None:
    check(seed, 4000)


def test_the_oracles_are_asked() -> None:
    """A reader that split the body off would be noticed."""
    stream = CORPUS[1]

    assert read_with_h11(stream).seen == read_with_llhttp(stream).seen == read_stream([stream]).seen
    assert len(read_stream([stream]).seen) == 2


@pytest.mark.skipif("EDGE_SERVE_FUZZ_SECONDS" not in os.environ, reason="a long run, on demand")
@pytest.mark.timeout(0)
def test_mutations_for_long() -> None:
    end = time.monotonic() + float(os.environ["EDGE_SERVE_FUZZ_SECONDS"])
    while time.monotonic() < end:
        check(random.SystemRandom().randrange(1 << 32), 1000)
