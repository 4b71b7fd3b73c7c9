"""The wait-for graph: calls that may wait, and calls that would wait for ever."""

from __future__ import annotations

from edge_serve.models.extras.wait_for_graph import Place, WaitForGraph, WaitsFor


def on(*places: Place) -> WaitsFor:
    """Waits for any of these."""
    return lambda: places


def test_an_instance_that_waits_for_itself_is_refused() -> None:
    waits = WaitForGraph()
    assert not waits.try_wait(("a", 0), on(("a", 0)))
    assert waits.try_wait(("a", 0), on(("a", 0), ("a", 1)))


def test_the_last_one_that_closes_a_circle_is_refused() -> None:
    waits = WaitForGraph()
    assert waits.try_wait(("a", 0), on(("b", 0), ("b", 1)))
    assert waits.try_wait(("b", 0), on(("a", 0), ("c", 0)))
    assert waits.try_wait(("b", 1), on(("a", 0), ("c", 0)))
    assert not waits.try_wait(("c", 0), on(("a", 0)))
    assert waits.try_wait(("c", 0), on(("d", 0)))


def test_one_that_was_refused_does_not_wait() -> None:
    waits = WaitForGraph()
    assert not waits.try_wait(("a", 0), on(("a", 0)))
    assert waits.try_wait(("b", 0), on(("a", 0)))


def test_one_that_has_its_answer_does_not_wait() -> None:
    waits = WaitForGraph()
    first = on(("b", 0))
    assert waits.try_wait(("a", 0), first)
    assert not waits.try_wait(("b", 0), on(("a", 0)))
    waits.remove(("a", 0))
    assert waits.try_wait(("b", 0), on(("a", 0)))


def test_one_whose_caller_has_died_does_not_wait() -> None:
    waits = WaitForGraph()
    assert waits.try_wait(("a", 0), on(("b", 0)))
    assert waits.add(("a", 0), lambda: None) == set()
    assert waits.try_wait(("b", 0), on(("a", 0)))


def test_all_instances_of_a_circle_are_returned() -> None:
    waits = WaitForGraph()
    assert waits.add(("a", 0), on(("b", 0), ("c", 0))) == set()
    assert waits.add(("b", 0), on(("a", 0))) == set()
    assert waits.add(("d", 0), on(("a", 0))) == set()
    assert waits.add(("c", 0), on(("b", 0))) == {("a", 0), ("b", 0), ("c", 0)}
    waits.remove(("b", 0))
    assert waits.add(("a", 0), on(("b", 0), ("c", 0))) == set()
