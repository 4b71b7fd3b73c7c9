"""Slots: the lowest free one first, over all instances, and none is lost."""

from __future__ import annotations

from random import Random

import pytest

from edge_serve.scheduling.sequence.slots import SequenceSlots
from tests.footprint import footprint


def test_instances_fill_evenly_and_then_no_slot_is_free() -> None:
    slots: SequenceSlots[str] = SequenceSlots([0, 2], 2)
    taken = [slots.take(who) for who in "abcde"]

    assert taken == [(0, 0), (2, 0), (0, 1), (2, 1), None]
    assert slots.at(2) == {0: "b", 1: "d"}
    assert sorted(slots) == [(0, 0, "a"), (0, 1, "c"), (2, 0, "b"), (2, 1, "d")]


def test_a_released_slot_is_taken_again_before_higher_ones() -> None:
    slots: SequenceSlots[str] = SequenceSlots([0], 8)
    for who in "abc":
        slots.take(who)
    slots.release(0, 1)
    slots.release(0, 0)

    assert [slots.take(who) for who in "def"] == [(0, 0), (0, 1), (0, 3)]


def test_a_lost_instance_takes_no_sequence_until_it_returns() -> None:
    slots: SequenceSlots[str] = SequenceSlots([0, 1], 2)
    for who in "abcd":
        slots.take(who)

    assert slots.remove(1) == ["b", "d"]
    assert slots.remove(1) == []
    assert slots.remove(7) == []
    assert slots.take("e") is None
    slots.restore(1)
    slots.restore(1)
    assert [slots.take(who) for who in "efg"] == [(1, 0), (1, 1), None]


def test_a_closed_instance_takes_no_more_sequences() -> None:
    slots: SequenceSlots[str] = SequenceSlots([0, 1], 2)
    for who in "abc":
        slots.take(who)
    slots.close(0)
    slots.add(2)
    assert [slots.take(who) for who in "def"] == [(2, 0), (1, 1), (2, 1)]
    assert slots.take("g") is None
    slots.release(0, 0)
    slots._check()
    assert slots.at(0) == {1: "c"}
    assert slots.remove(0) == ["c"]
    slots.restore(0)
    slots._check()
    assert slots.take("g") is None
    slots.discard(0)
    slots._check()


def test_many_slots_cost_nothing_before_they_are_taken() -> None:
    slots: SequenceSlots[int] = SequenceSlots([0], 1 << 20)
    assert [slots.take(who) for who in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert footprint(slots) < 100


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_keeps_the_invariants(seed: int) -> None:
    random, slots, taken, away = (
        Random(seed),
        SequenceSlots[int]([0, 1, 2], 3),
        dict[tuple[int, int], int](),
        set[int](),
    )
    for who in range(500):
        choice = random.random()
        if choice < 0.5:
            place = slots.take(who)
            free = {(i, s) for i in range(3) if i not in away for s in range(3)} - taken.keys()
            assert (place is None) == (not free)
            if place is not None:
                assert place[1] == min(slot for _, slot in free), "not the lowest"
                taken[place] = who
        elif choice < 0.9 and taken:
            place = random.choice(list(taken))
            del taken[place]
            slots.release(*place)
        elif choice < 0.95:
            gone = random.randrange(3)
            assert slots.remove(gone) == [taken[p] for p in sorted(taken) if p[0] == gone]
            away.add(gone)
            taken = {p: who for p, who in taken.items() if p[0] != gone}
        elif away:
            back = away.pop()
            slots.restore(back)
        slots._check()
        assert {(i, s): who for i, s, who in slots} == taken
