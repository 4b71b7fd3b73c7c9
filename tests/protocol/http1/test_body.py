"""Ordinary memory for bodies that arrive bit by bit."""

from __future__ import annotations

import random

import pytest

from edge_serve.protocol.http1.body import LARGE, BodyBuffer


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE, 21 * LARGE + 7])
def test_appended_bytes_are_taken(size: int) -> None:
    data = memoryview(random.Random(size).randbytes(size))
    buffer, step = BodyBuffer(), 300_007
    for start in range(0, size, step):
        buffer.extend(data[start : start + step])
        assert len(buffer) == min(size, start + step)
    assert bytes(buffer.take()) == data
    assert len(buffer) == 0
