"""Seats: the lowest free one first, over all instances, and none is lost."""

from __future__ import annotations

from random import Random

import pytest

from edge_serve.scheduling.sequence.slots import SequenceSlots


def test_instances_fill_evenly_and_then_no_seat_is_free() -> None:
    seats: SequenceSlots[str] = SequenceSlots([0, 2], 2)
    taken = [seats.take(who) for who in "abcde"]

    assert taken == [(0, 0), (2, 0), (0, 1), (2, 1), None]
    assert seats.at(2) == {0: "b", 1: "d"}
    assert sorted(seats) == [(0, 0, "a"), (0, 1, "c"), (2, 0, "b"), (2, 1, "d")]


def test_a_seat_that_was_given_back_is_taken_again_before_higher_ones() -> None:
    seats: SequenceSlots[str] = SequenceSlots([0], 8)
    for who in "abc":
        seats.take(who)
    seats.give_back(0, 1)
    seats.give_back(0, 0)

    assert [seats.take(who) for who in "def"] == [(0, 0), (0, 1), (0, 3)]


def test_an_instance_that_is_gone_seats_nobody_until_it_is_back() -> None:
    seats: SequenceSlots[str] = SequenceSlots([0, 1], 2)
    for who in "abcd":
        seats.take(who)

    assert seats.remove(1) == ["b", "d"]
    assert seats.remove(1) == []
    assert seats.remove(7) == []
    assert seats.take("e") is None
    seats.restore(1)
    seats.restore(1)
    assert [seats.take(who) for who in "efg"] == [(1, 0), (1, 1), None]


def test_a_closed_instance_seats_nobody_new() -> None:
    seats: SequenceSlots[str] = SequenceSlots([0, 1], 2)
    for who in "abc":
        seats.take(who)
    seats.close(0)
    seats.add(2)
    assert [seats.take(who) for who in "def"] == [(2, 0), (1, 1), (2, 1)]
    assert seats.take("g") is None
    seats.give_back(0, 0)
    seats._check()
    assert seats.at(0) == {1: "c"}
    assert seats.remove(0) == ["c"]
    seats.restore(0)
    seats._check()
    assert seats.take("g") is None
    seats.discard(0)
    seats._check()


def test_many_seats_cost_nothing_before_they_are_taken() -> None:
    seats: SequenceSlots[int] = SequenceSlots([0], 1 << 40)
    assert [seats.take(who) for who in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert len(seats._free) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_keeps_the_invariants(seed: int) -> None:
    random, seats, taken, away = (
        Random(seed),
        SequenceSlots[int]([0, 1, 2], 3),
        dict[tuple[int, int], int](),
        set[int](),
    )
    for who in range(500):
        choice = random.random()
        if choice < 0.5:
            place = seats.take(who)
            free = {(i, s) for i in range(3) if i not in away for s in range(3)} - taken.keys()
            assert (place is None) == (not free)
            if place is not None:
                assert place[1] == min(seat for _, seat in free), "not the lowest"
                taken[place] = who
        elif choice < 0.9 and taken:
            place = random.choice(list(taken))
            del taken[place]
            seats.give_back(*place)
        elif choice < 0.95:
            gone = random.randrange(3)
            assert seats.remove(gone) == [taken[p] for p in sorted(taken) if p[0] == gone]
            away.add(gone)
            taken = {p: who for p, who in taken.items() if p[0] != gone}
        elif away:
            back = away.pop()
            seats.restore(back)
        seats._check()
        assert {(i, s): who for i, s, who in seats} == taken
