"""The wait-for graph: calls that may wait, and calls that would wait for ever."""

from __future__ import annotations

from edge_serve.models.extras.wait_for_graph import Place, find_deadlock

Waits = dict[Place, list[Place]]


def test_an_instance_that_waits_for_itself_is_stuck() -> None:
    place = ("a", 0)
    assert find_deadlock(place, [place], Waits().get) == {place}
    assert find_deadlock(place, [place, ("a", 1)], Waits().get) == set()


def test_the_last_one_that_closes_a_circle_is_stuck_with_all_others() -> None:
    waits: Waits = {
        ("a", 0): [("b", 0), ("b", 1)],
        ("b", 0): [("a", 0), ("c", 0)],
        ("b", 1): [("a", 0), ("c", 0)],
        ("d", 0): [("a", 0)],
    }
    for place, others in waits.items():
        assert find_deadlock(place, others, waits.get) == set()
    assert find_deadlock(("c", 0), [("a", 0)], waits.get) == {("a", 0), ("b", 0), ("b", 1), ("c", 0)}
    assert find_deadlock(("c", 0), [("e", 0)], waits.get) == set()
    del waits["b", 1]
    assert find_deadlock(("c", 0), [("a", 0)], waits.get) == set(), "it has its answer"


def test_one_whose_caller_has_died_does_not_wait() -> None:
    waits: Waits = {("b", 0): [("a", 0)]}
    assert find_deadlock(("a", 0), None, waits.get) == set()
