"""Time limits for reading, with functions that hang until the test lets them return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edge_serve.errors import UnreadableEntry
from edge_serve.models.repository.reading import MOST_HANGING, Reader

SILENT = "does not answer"


@pytest.fixture
def answer() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def returns(value: int) -> Callable[[], int]:
    return lambda: value


def raises(error: Exception) -> Callable[[], int]:
    def function() -> int:
        raise error

    return function


def hangs(until: threading.Event) -> Callable[[], int]:
    def function() -> int:
        until.wait(30)
        return -1

    return function


def test_each_entry_has_its_result_or_its_error() -> None:
    fault = ValueError("of ours")
    results = Reader().read_all({"a": returns(1), "b": raises(OSError(5, "Input/output error")), "c": raises(fault)})

    assert (results["a"], str(results["b"]), results["c"]) == (1, "cannot be read: Input/output error", fault)
    assert isinstance(results["b"], UnreadableEntry)
    assert Reader().read_all({}) == {}


def test_an_entry_that_hangs_does_not_hold_the_others(answer: threading.Event) -> None:
    began = time.monotonic()
    results = Reader().read_all({"a": hangs(answer), "b": returns(2), "c": hangs(answer), "d": returns(4)}, 0.5)

    assert (results["b"], results["d"]) == (2, 4)
    assert [str(results[name])[: len(SILENT)] for name in "ac"] == [SILENT, SILENT]
    assert time.monotonic() - began < 5


def test_an_entry_that_hangs_is_not_read_again_until_it_has_returned(answer: threading.Event) -> None:
    reader = Reader()
    with pytest.raises(UnreadableEntry, match=SILENT):
        reader.read("a", hangs(answer), 0.3)
    called: list[int] = []
    with pytest.raises(UnreadableEntry, match=SILENT):
        reader.read("a", lambda: called.append(1))
    assert called == []

    answer.set()
    end = time.monotonic() + 10
    while time.monotonic() < end and not called:
        try:
            reader.read("a", lambda: called.append(1))
        except UnreadableEntry:
            time.sleep(0.01)
    assert called == [1]


@pytest.mark.slow
def test_threads_that_are_left_behind_have_a_limit(answer: threading.Event) -> None:
    reader = Reader()
    before = threading.active_count()
    for number in range(3 * MOST_HANGING):
        reader.read_all({f"{number} {i}": hangs(answer) for i in range(MOST_HANGING)}, 0)
    assert threading.active_count() - before < 2 * MOST_HANGING
    with pytest.raises(UnreadableEntry, match=f"{MOST_HANGING} others do not answer"):
        reader.read("another", returns(1))
