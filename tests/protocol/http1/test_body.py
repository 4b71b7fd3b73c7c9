"""Ordinary memory for bodies that arrive bit by bit."""

from __future__ import annotations

import random

import pytest

from edge_serve.protocol.http1.body import SMALL, BodyBuffer


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 5 * SMALL, 21 * SMALL + 7])
def test_appended_bytes_are_taken(size: int) -> None:
    data = memoryview(random.Random(size).randbytes(size))
    buffer, step = BodyBuffer(), 300_007
    for start in range(0, size, step):
        buffer.extend(data[start : start + step])
        assert len(buffer) == min(size, start + step)
    assert bytes(buffer.take()) == data
    assert len(buffer) == 0
