"""Frames: cut from any chunking, and refused when they are not ours."""

from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument, Unavailable
from edge_serve.workers.wire.frames import (
    HEADER,
    LONGEST,
    Frame,
    FrameError,
    FrameKind,
    Splitter,
    error_of,
    failed_frame,
    frame,
    json_frame,
    parse_header,
    parse_json,
)

STREAM = (
    frame(FrameKind.HEARTBEAT)
    + json_frame(FrameKind.LOG, 7, {"text": "näh"})
    + frame(FrameKind.EXECUTE, -1, b"x" * 100, 3)
)
FRAMES = [
    Frame(FrameKind.HEARTBEAT, 0, 0, b""),
    Frame(FrameKind.LOG, 0, 7, b'{"text": "n\\u00e4h"}'),
    Frame(FrameKind.EXECUTE, 3, -1, b"x" * 100),
]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000])
def test_frames_are_cut_from_any_chunking(size: int) -> None:
    splitter, found = Splitter(), []
    for start in range(0, len(STREAM), size):
        found += splitter.feed(STREAM[start : start + size])
    assert found == FRAMES


def test_a_tail_waits_for_the_rest() -> None:
    splitter = Splitter()
    assert splitter.feed(STREAM[:-1]) == FRAMES[:-1]
    assert splitter.feed(STREAM[-1:]) == FRAMES[-1:]


@pytest.mark.parametrize(
    "header", [b"\xff" * 16, HEADER.pack(0, 2, 1, 0, 0), HEADER.pack(LONGEST + 1, 1, 1, 0, 0), b"GET / HTTP/1.1\r\n"]
)
def test_a_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError, match="expected version 1"):
        parse_header(header)
    with pytest.raises(FrameError):
        Splitter().feed(header)


@pytest.mark.parametrize("payload", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_json_other_than_an_object_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        Frame(FrameKind.LOG, 0, 0, payload).json()


def test_an_error_keeps_its_class_and_text() -> None:
    for error in (Unavailable("no room"), InvalidArgument("ünknown")):
        (received,) = Splitter().feed(failed_frame(3, error))
        again = error_of(received.json())
        assert (type(again), again.message, received.id) == (type(error), error.message, 3)


@pytest.mark.parametrize("value", [{}, {"code": "x"}, {"code": 99, "text": 5}, {"code": []}])
def test_a_strange_error_is_internal(value: dict[str, object]) -> None:
    assert error_of(value).http_status == 500


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_stays() -> None:
    found = parse_json(b'{"a": ["\\ud800x", "\\uD83D\\uDE00", "\\\\ud800"]}')
    assert found == {"a": ["?x", "\U0001f600", "\\ud800"]}
