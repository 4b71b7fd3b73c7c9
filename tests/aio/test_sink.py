"""The queue that one thread writes out."""

from __future__ import annotations

import threading
import time

import pytest

from edge_serve.aio.sink import Sink
from edge_serve.aio.within import within

PATIENCE = 30.0


class Slow:
    """Writes to a list once `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.came = threading.Event()
        self.written: list[str] = []

    def __call__(self, item: str) -> None:
        self.came.set()
        assert self.gate.wait(PATIENCE)
        self.written.append(item)


def sink_of(slow: Slow, most: int) -> Sink[str]:
    return Sink(slow, lambda count: f"{count} lost", "test", most)


def test_items_are_written_in_order_and_what_does_not_fit_is_counted_once() -> None:
    slow = Slow()
    sink = sink_of(slow, 30)
    for number in range(5):
        sink.put(str(number), 10)
    assert slow.came.wait(PATIENCE)
    slow.gate.set()
    assert sink.flush(PATIENCE)
    sink.put("after", 10)
    assert sink.close(PATIENCE)

    assert slow.written == ["0", "1", "2", "2 lost", "after"]


def test_items_put_before_the_queue_is_written_count_as_lost() -> None:
    slow = Slow()
    sink = sink_of(slow, 10)
    sink.put("a", 10)
    sink.put("b", 10)  # lost
    sink.put("c", 0)  # would fit, and would stand before the gap
    slow.gate.set()

    assert sink.close(PATIENCE)
    assert slow.written == ["a", "2 lost"]


def test_an_item_larger_than_the_limit_is_written_when_nothing_waits() -> None:
    slow = Slow()
    slow.gate.set()
    sink = sink_of(slow, 10)
    sink.put("x", 1000)

    assert sink.close(PATIENCE)
    assert slow.written == ["x"]


def test_close_waits_for_the_writer_up_to_its_limit() -> None:
    slow = Slow()
    sink = sink_of(slow, 100)
    sink.put("a", 1)
    began = time.monotonic()
    assert not sink.close(0.05)
    assert time.monotonic() - began < PATIENCE
    sink.put("after the end", 1)
    slow.gate.set()

    assert sink.flush(PATIENCE)
    assert slow.written == ["a"]


def test_a_thread_that_cannot_be_started_is_started_with_the_next_item(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    slow.gate.set()
    sink = sink_of(slow, 100)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sink.put("a", 1)
    monkeypatch.undo()
    sink.put("b", 1)

    assert sink.close(PATIENCE)
    assert slow.written == ["a", "b"]


def test_a_thread_that_starts_after_items_were_discarded_writes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    slow.gate.set()
    sink = sink_of(slow, 1)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sink.put("a", 1)
    sink.put("b", 1)
    monkeypatch.undo()
    sink.put("c", 1)
    assert sink.flush(1)
    sink.put("d", 1)

    assert sink.close(PATIENCE)
    assert slow.written == ["a", "2 lost", "d"]


def test_a_call_has_a_time_limit() -> None:
    gate = threading.Event()
    assert within(PATIENCE, int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        within(PATIENCE, int, "x")
    with pytest.raises(TimeoutError, match="does not answer within"):
        within(0.01, gate.wait, PATIENCE)
    gate.set()
