"""Request heads: each case is read whole, byte by byte, and with another request behind it.

Heads of responses: the same values give the same bytes, whether from the memo or not.
"""

from __future__ import annotations

import pytest

from edge_serve.errors import EdgeServeError
from edge_serve.protocol.http1 import head as http1_head
from edge_serve.protocol.http1.head import CLOSE, HeadParser, MessageLimits, RequestHead, response_head
from tests.footprint import footprint
from tests.protocol.http1_stream import Outcome, one_by_one, read_stream

TAIL = b"GET /tail HTTP/1.1\r\nHost: t\r\n\r\n"


def parse(text: str) -> RequestHead:
    return HeadParser(MessageLimits()).parse(text.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n")


def read_three_ways(data: bytes) -> Outcome:
    """The outcome, which must not depend on how the bytes arrive; a tail must be read as a request of its own."""
    whole = read_stream([data])
    split = read_stream(one_by_one(data))
    assert (split.seen, split.end, split.error) == (whole.seen, whole.end, whole.error)
    if whole.end == "open":
        assert read_stream([data + TAIL]).seen == [*whole.seen, ("GET", "/tail", b"")]
    return whole


def test_a_head_is_taken_apart() -> None:
    head = parse(
        "POST /v2/models/m%20x/infer?a=b?c HTTP/1.1\nHost: h\nX-One:  a b \t\nx-one: c\nContent-Length: 12\nE:"
    )

    assert (head.method, head.target) == ("POST", "/v2/models/m%20x/infer?a=b?c")
    assert (head.path, head.query, head.version) == ("/v2/models/m%20x/infer", "a=b?c", "1.1")
    assert head.headers == (("Host", "h"), ("X-One", "a b"), ("x-one", "c"), ("Content-Length", "12"), ("E", ""))
    assert head.get("X-ONE") == head.get("x-one") == "a b, c"
    assert head.get("absent") is None
    assert (head.content_length, head.chunked, head.keep_alive) == (12, False, True)


def test_bytes_beyond_ascii_in_a_target_are_percent_encoded() -> None:
    head = HeadParser(MessageLimits()).parse("GET /m\u00e9/%C3%A9?a=\u00e9 HTTP/1.1\r\n\r\n".encode())
    assert (head.path, head.query) == ("/m%C3%A9/%C3%A9", "a=%C3%A9")
    assert HeadParser(MessageLimits()).parse(b"GET /\x80\xff HTTP/1.1\r\n\r\n").path == "/%80%FF"


def test_values_are_latin_1() -> None:
    assert parse("GET / HTTP/1.1\nX: caf\xe9").get("x") == "caf\xe9"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/a?", "/a", ""),
        ("//a//b", "//a//b", ""),
        ("http://host:8000/v2?x", "/v2", "x"),
        ("HTTPS://host", "/", ""),
        ("http://host?x", "/", "x"),
        ("*", "*", ""),
    ],
)
def test_the_forms_of_a_target(target: str, path: str, query: str) -> None:
    head = parse(f"OPTIONS {target} HTTP/1.1")

    assert (head.path, head.query) == (path, query)


@pytest.mark.parametrize(
    ("version", "connection", "keeps"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: Foo, CLOSE", False),
        ("1.1", "Connection: keep-alive", True),
        ("1.1", "Connection: close\nConnection: keep-alive", False),
        ("1.0", "", False),
        ("1.0", "Connection: Keep-Alive", True),
        ("1.0", "Connection: keep-alive, close", False),
        ("1.0", "Connection: other", False),
    ],
)
def test_connections_that_are_kept(version: str, connection: str, keeps: bool) -> None:
    assert parse(f"GET / HTTP/{version}\n{connection}".rstrip("\n")).keep_alive is keeps


@pytest.mark.parametrize(
    ("fields", "expects"),
    [
        ("Expect: 100-continue\nContent-Length: 1", True),
        ("Expect: 100-Continue\nTransfer-Encoding: chunked", True),
        ("Expect: 100-continue\nContent-Length: 0", False),
        ("Expect: 100-continue", False),
    ],
)
def test_clients_that_wait_for_100_continue(fields: str, expects: bool) -> None:
    assert parse(f"POST / HTTP/1.1\n{fields}").expect_continue is expects
    assert not parse(
        f"POST / HTTP/1.0\n{fields.replace('Transfer-Encoding: chunked', 'Content-Length: 1')}"
    ).expect_continue


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"NONSENSE\r\n\r\n", 400, "does not end with a version"),
        (b"GET\r\n\r\n", 400, "does not end with a version"),
        (b"GET /\r\n\r\n", 400, "does not end with a version"),
        (b"GET  / HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"GET / HTTP/1.1 \r\n\r\n", 400, "does not end with a version"),
        (b"GET / http/1.1\r\n\r\n", 400, "does not end with a version"),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"GET /\x7f HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"GET /\xc3\xa9 b HTTP/1.1\r\n\r\n", 400, "not a request line: 'GET /\u00e9 b HTTP/1.1'"),
        (b"GET http://\xc3\xa9/ HTTP/1.1\r\n\r\n", 400, "neither a path nor an http:// URI"),
        (b"GET /\x00 HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"GET\t/ HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"G(T / HTTP/1.1\r\n\r\n", 400, "not a request line"),
        (b"GET v2 HTTP/1.1\r\n\r\n", 400, "neither a path nor an http:// URI"),
        (b"GET / HTTP/9.9\r\n\r\n", 505, "HTTP/9.9 is not supported"),
        (b"GET / HTTP/0.9\r\n\r\n", 505, "HTTP/0.9 is not supported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2.0 is not supported: use HTTP/1.1"),
        (b"CONNECT h:1 HTTP/1.1\r\n\r\n", 501, "not a proxy"),
        (b"\x16\x03\x01\x02\x00", 400, "this is not HTTP"),
        (b" GET / HTTP/1.1\r\n\r\n", 400, "this is not HTTP"),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400, "LF alone"),
        (b"GET / HTTP/1.1\r\nHost: h\n\r\n\r\n", 400, "LF alone"),
        (b"GET / HTTP/1.1\r\nA: b\r\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\nBad Header\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\nA : x\r\n\r\n", 400, "blank between the header name 'A' and its colon"),
        (b"GET / HTTP/1.1\r\nA: x\r\n y\r\n\r\n", 400, "folded"),
        (b"GET / HTTP/1.1\r\n A: x\r\n\r\n", 400, "folded"),
        (b"GET / HTTP/1.1\r\nA: x\x00y\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\nA: x\x7f\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\nA\xe9: x\r\n\r\n", 400, "not a header line"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400, "more than one host header"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\nab", 400, "more than one content-length"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nabcde", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n", 400, "expected a number"),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413, "is larger than"),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "both"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "'gzip, chunked' is not supported"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", 501, "'identity' is not supported"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", 400, "not a header line"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", 400, "more than one"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n", 400, "a tab"),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\t\r\n\r\n", 400, "a tab"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0"),
        (b"POST / HTTP/1.1\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417, "expectation 'tea' is not supported"),
    ],
)  # fmt: skip
def test_invalid_heads_are_refused(data: bytes, status: int, said: str) -> None:
    outcome = read_three_ways(data)

    assert (outcome.seen, outcome.end) == ([], str(status))
    assert said in outcome.error


def test_empty_lines_before_a_request_are_forgiven() -> None:
    assert read_three_ways(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n").seen == [("GET", "/", b"")]


def test_equal_bytes_give_the_same_head() -> None:
    parser = HeadParser(MessageLimits())

    assert parser.parse(b"GET / HTTP/1.1\r\n\r\n") is parser.parse(b"GET / HTTP/1.1\r\n\r\n")


def test_the_memory_of_heads_is_bounded() -> None:
    parser = HeadParser(MessageLimits())
    for number in range(3000):
        parser.parse(b"GET /%d HTTP/1.1\r\n\r\n" % number)
    long = b"GET / HTTP/1.1\r\nA: " + b"x" * 5000 + b"\r\n\r\n"

    assert parser.parse(long) is not parser.parse(long)
    assert footprint(parser) < 20 * 512


def test_a_refused_head_is_not_remembered() -> None:
    parser = HeadParser(MessageLimits())
    for _ in range(2):
        with pytest.raises(EdgeServeError):
            parser.parse(b"GET / HTTP/3.0\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 16384 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"a" * 16384, 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 65536 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 65536, 431),
    ],
    ids=["line", "unfinished line", "fields", "head", "unfinished head"],
)
def test_limits(data: bytes, status: int) -> None:
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]

    assert read_stream([data], buffer_size=1 << 18).end == str(status)
    assert read_stream(pieces).end == str(status)


def test_the_largest_that_fits() -> None:
    line = b"GET /" + b"a" * (16384 - 16) + b" HTTP/1.1\r\n"
    fields = b"A: b\r\n" * 99 + b"A: " + b"b" * (65536 - len(line) - 99 * 6 - 7) + b"\r\n\r\n"
    assert (len(line), len(line + fields)) == (16384, 65536)

    assert read_stream([line + fields]).end == "open"


LENGTH = (("Inference-Header-Content-Length", "12"),)


def test_equal_replies_share_a_head_and_others_do_not() -> None:
    head = response_head(200, "text/plain", 5, LENGTH)
    assert head == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nInference-Header-Content-Length: 12\r\n"
        b"Content-Length: 5\r\n\r\n"
    )
    assert response_head(200, "text/plain", 5, (("Inference-Header-Content-Length", "12"),)) is head
    others = [
        response_head(400, "text/plain", 5, LENGTH),
        response_head(200, "text/html", 5, LENGTH),
        response_head(200, "text/plain", 6, LENGTH),
        response_head(200, "text/plain", 5, ()),
        response_head(200, "text/plain", 5, LENGTH, CLOSE),
        response_head(200, "text/plain", None, LENGTH),
    ]
    assert len({head, *others}) == 7
    assert response_head(200, "text/plain", 5, list(LENGTH)) == head


def test_a_header_with_a_line_break_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="line break"):
            response_head(200, None, 0, (("X", "a\r\nSet-Cookie: b"),))


def test_few_heads_are_remembered_and_no_long_ones() -> None:
    before = footprint(vars(http1_head))
    for length in range(2000):
        assert b"Content-Length: %d\r\n" % length in response_head(200, None, length)
    assert footprint(vars(http1_head)) < before + 2000
    long = (("X", "y" * 2000),)
    assert response_head(200, None, 0, long) is not response_head(200, None, 0, long)
