"""What models print."""

from __future__ import annotations

import asyncio
import os

from edge_serve.workers.output import LONGEST_LINE, Output, Rate
from tests.workers.harness import run


def lines_of(*writes: bytes) -> list[str]:
    """What becomes of these writes."""

    async def collect() -> list[str]:
        reading, writing = os.pipe()
        found: list[str] = []
        output = Output(asyncio.get_running_loop(), reading, "m", found.append)
        for data in writes:
            os.write(writing, data)
            output.read()
        os.close(writing)
        output.finish()
        return found

    return run(collect())


def test_lines_are_put_together() -> None:
    assert lines_of(b"one\ntw", b"o\n\n", b"three") == ["one", "two", "", "three"]


def test_bytes_that_are_no_text_are_shown() -> None:
    assert lines_of(b"\xff\xfe\n") == ["��"]


def test_an_endless_line_is_cut() -> None:
    found = lines_of(b"x" * 60_000, b"y" * 60_000)
    assert len(found) == 2
    assert all(len(line) == LONGEST_LINE for line in found)


def test_a_flood_is_counted_not_written() -> None:
    found = lines_of(*[b"line\n" * 1000] * 5)
    assert 1000 <= len(found) < 1100
    assert found[-1].startswith("(")
    assert "lines dropped" in found[-1]


def test_the_rate_refills() -> None:
    rate = Rate(8, 2)
    assert [rate.take(at) for at in (100, 100, 100, 100.0625, 100.125, 100.125, 200, 200, 200)] == [
        True, True, False, False, True, False, True, True, False,
    ]  # fmt: skip
