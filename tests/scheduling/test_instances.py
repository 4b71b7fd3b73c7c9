"""Instances: who gets the next batch."""

from __future__ import annotations

import pytest

from edge_serve.scheduling.instances import Instances, RankedInstances


def test_the_lowest_first_then_the_one_used_last() -> None:
    instances = Instances(3)
    assert [instances.take(), instances.take()] == [0, 1]
    instances.done(1)
    instances.done(0)

    assert instances.take() == 0
    assert instances.idle == [2, 1]


def test_passive_ones_never() -> None:
    instances = Instances(3, passive={1})
    for event in (instances.done, instances.lost, instances.back):
        event(1)
    taken = [instances.take(), instances.take()]

    assert taken == [0, 2]
    with pytest.raises(IndexError):
        instances.take()


def test_a_lost_one_works_again_only_when_it_is_back() -> None:
    instances = Instances(2)
    instances.take()
    instances.lost(0)
    instances.lost(1)
    instances.lost(1)
    instances.done(0)
    instances._check()
    assert instances.idle == []

    instances.back(1)
    instances.back(0)
    instances.back(0)
    instances._check()

    assert sorted(instances.idle) == [0, 1]


def test_one_that_is_added_waits_behind_the_warm_ones_and_a_retired_one_finishes() -> None:
    instances = Instances(2)
    assert instances.take() == 0
    instances.add(2)
    instances.add(3, passive=True)
    assert instances.idle == [2, 1]
    for retired in (0, 1, 3):
        instances.retire(retired)
        instances._check()
    assert [n for n in range(4) if instances.has(n)] == [0, 2]
    instances.retire(0)
    instances.done(0)
    instances._check()
    assert (instances.has(0), instances.idle, instances.busy) == (False, [2], 0)


def test_a_retired_one_that_is_lost_is_gone() -> None:
    instances = Instances(2)
    for lost_first in (True, False):
        number = instances.take()
        for event in (instances.lost, instances.retire) if lost_first else (instances.retire, instances.lost):
            event(number)
        instances.back(number)
        instances._check()
        assert not instances.has(number)


def test_ranked_instances_give_the_one_of_the_lowest_rank_and_of_equals_the_one_used_last() -> None:
    ranks = [3, 1, 2, 1]
    instances = RankedInstances(5, {4}, lambda number: ranks[number])
    first = [instances.take(), instances.take()]
    instances.done(1)
    instances.done(3)

    assert first == [1, 3]
    assert [instances.take() for _ in range(4)] == [3, 1, 2, 0]
    instances._check()
