"""Heads of responses: the same values give the same bytes, whether remembered or not."""

from __future__ import annotations

import pytest

from edge_serve.protocol.http1 import response as http1_response
from edge_serve.protocol.http1.response import CLOSE, response_head
from tests.footprint import footprint

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
    before = footprint(vars(http1_response))
    for length in range(2000):
        assert b"Content-Length: %d\r\n" % length in response_head(200, None, length)
    assert footprint(vars(http1_response)) < before + 2000
    long = (("X", "y" * 2000),)
    assert response_head(200, None, 0, long) is not response_head(200, None, 0, long)
