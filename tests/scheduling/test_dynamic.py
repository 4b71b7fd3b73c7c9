"""The rules of the dynamic batcher one by one; the numbers are those of Triton's L0_batcher where it has them."""

from __future__ import annotations

import pytest

from edge_serve.errors import Unavailable
from edge_serve.scheduling.core import NOTHING, DynamicBatching, QueuePolicy, Run
from edge_serve.scheduling.dynamic import DynamicScheduler

from .simulation import MS, entry, ids, settle

PREFERRED_2_6 = DynamicBatching(8, preferred_batch_sizes=(2, 6), max_queue_delay_us=10_000)


@pytest.mark.parametrize(
    ("waiting", "sent"),
    [
        ([(2, 16)], [["0"]]),
        ([(6, 16)], [["0"]]),
        ([(7, 16)], [["0"]]),
        ([(1, 16)], []),
        ([(3, 16)], []),
        ([(1, 16), (3, 16)], []),
        ([(3, 16), (7, 16)], [["0"], ["1"]]),
        ([(3, 16), (4, 16)], [["0"]]),
        ([(1, 16), (1, 16)], [["0", "1"]]),
        ([(1, 16), (1, 8)], [["0"]]),
        ([(1, 16), (3, 16), (1, 8)], [["0", "1"]]),
        ([(1, 16), (3, 16), (1, 8), (5, 8)], [["0", "1"], ["2", "3"]]),
        ([(2, 16), (2, 16), (2, 16), (2, 16)], [["0", "1", "2"], ["3"]]),
        ([(2, 16), (1, 16)], [["0"]]),
        ([(1, 16), (1, 16), (3, 16)], [["0", "1"]]),
    ],
)
def test_preferred_sizes_and_shapes(waiting: list[tuple[int, int]], sent: list[list[str]]) -> None:
    scheduler = DynamicScheduler(PREFERRED_2_6, 4)
    for number, (rows, key) in enumerate(waiting):
        scheduler.add(entry(0, rows=rows, key=(key,), id=str(number)), 0)
    runs, _, until_ns = settle(scheduler, 0)

    assert ids(runs) == sent
    assert until_ns == (10 * MS if scheduler.pending() else None)


@pytest.mark.parametrize(
    ("batching", "rows", "sent"),
    [
        (DynamicBatching(8), [1, 1, 1], [["0", "1", "2"]]),
        (DynamicBatching(8), [5, 4, 4], [["0"], ["1", "2"]]),
        (DynamicBatching(8), [1] * 10, [["0", "1", "2", "3", "4", "5", "6", "7"], ["8", "9"]]),
        (DynamicBatching(8, (2,)), [1, 1, 1], [["0", "1"], ["2"]]),
        (DynamicBatching(8, (4,)), [3, 3], [["0"], ["1"]]),
        (DynamicBatching(8, (4,)), [1, 1], [["0", "1"]]),
        (DynamicBatching(2), [0, 0, 0], [["0", "1"], ["2"]]),
        (DynamicBatching(1), [1, 1], [["0"], ["1"]]),
        (DynamicBatching(0), [1, 1], [["0"], ["1"]]),
        (DynamicBatching(0, max_queue_delay_us=1000), [1, 1], [["0"], ["1"]]),
    ],
)
def test_without_delay_an_idle_instance_takes_what_waits(
    batching: DynamicBatching, rows: list[int], sent: list[list[str]]
) -> None:
    scheduler = DynamicScheduler(batching, 4)
    for number, count in enumerate(rows):
        scheduler.add(entry(0, rows=count, id=str(number)), 0)
    runs, _, until_ns = settle(scheduler, 0)

    assert ids(runs) == sent
    assert until_ns is None


@pytest.mark.parametrize(
    ("batch", "waiting", "joins"),
    [
        ([1], [(1, 16), (2, 16), (3, 16), (1, 16)], ["0", "1"]),
        ([2, 4], [(1, 16)], []),
        ([7], [(1, 16)], []),
        ([1], [(0, 16), (1, 8), (1, 16)], ["0"]),
        ([1], [], []),
    ],
)
def test_a_batch_grows_up_to_the_largest_preferred_size(
    batch: list[int], waiting: list[tuple[int, int]], joins: list[str]
) -> None:
    scheduler = DynamicScheduler(PREFERRED_2_6, 0)
    for number, (rows, key) in enumerate(waiting):
        scheduler.add(entry(0, rows=rows, key=(key,), id=str(number)), 0)
    grown = scheduler.grow([entry(rows=rows, key=(16,)) for rows in batch])

    assert [one.request.id for one in grown] == joins
    assert scheduler.pending() == len(waiting) - len(joins)
    scheduler._check()


def test_when_the_delay_is_over_all_that_fits_is_sent() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4, (2,), max_queue_delay_us=10_000), 1)
    scheduler.lost(0)
    for number in range(6):
        scheduler.add(entry(number * MS, id=str(number)), number * MS)
    scheduler.back(0)
    runs, _, _ = settle(scheduler, 10 * MS)

    assert ids(runs) == [["0", "1", "2", "3"]]

    scheduler.done(0)
    runs, _, _ = settle(scheduler, 10 * MS)

    assert ids(runs) == [["4", "5"]]


def test_the_delay_counts_from_the_oldest_and_a_full_batch_does_not_wait() -> None:
    scheduler = DynamicScheduler(DynamicBatching(3, max_queue_delay_us=10_000), 2)
    scheduler.add(entry(0, id="a"), 0)
    assert settle(scheduler, 0) == ([], [], 10 * MS)
    scheduler.add(entry(4 * MS, id="b"), 4 * MS)
    assert settle(scheduler, 4 * MS) == ([], [], 10 * MS)
    assert settle(scheduler, 10 * MS - 1) == ([], [], 10 * MS)
    assert ids(settle(scheduler, 10 * MS)[0]) == [["a", "b"]]

    for number in range(3):
        scheduler.add(entry(20 * MS, id=str(number)), 20 * MS)

    assert ids(settle(scheduler, 20 * MS)[0]) == [["0", "1", "2"]]


def test_recorded_default_batcher_joins_what_waited_for_the_busy_instance() -> None:
    """conformance: batching.json, batch_default."""
    scheduler = DynamicScheduler(DynamicBatching(8, (8,)), 1)
    scheduler.add(entry(0, id="0"), 0)
    assert ids(settle(scheduler, 0)[0]) == [["0"]]
    for number in (1, 2, 3):
        scheduler.add(entry(250 * MS, id=str(number)), 250 * MS)
        assert settle(scheduler, 250 * MS) == ([], [], None)
    scheduler.done(0)

    assert ids(settle(scheduler, 500 * MS)[0]) == [["1", "2", "3"]]


def test_recorded_priorities() -> None:
    """conformance: priority.json, priority_order; 0 and too high numbers mean the default level."""
    scheduler = DynamicScheduler(DynamicBatching(1, priority_levels=3, default_priority_level=2), 1)
    for number, priority in enumerate([3, 2, 1, 0, 9, 1]):
        scheduler.add(entry(0, id=str(number), priority=priority), 0)
    order = []
    while scheduler.pending():
        (run,) = settle(scheduler, 0)[0]
        order.append(run.entries[0].request.id)
        scheduler.done(run.instance)

    assert order == ["2", "5", "1", "3", "4", "0"]


def test_a_batch_may_span_levels_and_starts_with_the_first() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4, priority_levels=2, default_priority_level=2), 1)
    for number, priority in enumerate([2, 1, 2, 1, 2]):
        scheduler.add(entry(0, id=str(number), priority=priority), 0)

    assert ids(settle(scheduler, 0)[0]) == [["1", "3", "0", "2"]]


def test_without_levels_priority_is_ignored() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4, policies={1: QueuePolicy(max_queue_size=1)}), 1)
    for number, priority in enumerate([3, 1, 1]):
        scheduler.add(entry(0, id=str(number), priority=priority), 0)

    assert ids(settle(scheduler, 0)[0]) == [["0", "1", "2"]]


def test_an_urgent_entry_ahead_may_complete_a_preferred_size() -> None:
    batching = DynamicBatching(8, (2, 6), 10_000, priority_levels=2, default_priority_level=2)
    scheduler = DynamicScheduler(batching, 1)
    scheduler.add(entry(0, rows=3, id="plain"), 0)
    assert settle(scheduler, 0) == ([], [], 10 * MS)
    scheduler.add(entry(1, rows=2, id="urgent", priority=1), 1)

    assert ids(settle(scheduler, 1)[0]) == [["urgent"]]


def test_an_entry_put_back_by_its_timeout_may_reveal_a_preferred_size() -> None:
    policy = QueuePolicy(delay_on_timeout=True, default_timeout_us=5000)
    scheduler = DynamicScheduler(DynamicBatching(8, (2, 6), 10_000, default_policy=policy), 1)
    scheduler.add(entry(0, id="late"), 0)
    scheduler.add(entry(MS, rows=2, id="fresh"), MS)
    assert settle(scheduler, MS) == ([], [], 5 * MS)

    assert ids(settle(scheduler, 5 * MS)[0]) == [["fresh"]]


def test_stop_refuses_what_comes_and_runs_what_waits() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4), 1)
    scheduler.add(entry(0, id="a"), 0)
    scheduler.stop()
    with pytest.raises(Unavailable) as caught:
        scheduler.add(entry(0, id="7"), 0)

    assert caught.value.message == (
        "[request id: 7] Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
    assert ids(settle(scheduler, 0)[0]) == [["a"]]


def test_idle_and_empty_it_waits_for_nothing() -> None:
    assert DynamicScheduler(DynamicBatching(4), 1).next(5) is NOTHING


def test_cancelling_the_oldest_moves_the_end_of_the_delay() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4, max_queue_delay_us=10_000), 1)
    first, second = entry(0), entry(3 * MS)
    scheduler.add(first, 0)
    scheduler.add(second, 3 * MS)
    assert settle(scheduler, 3 * MS)[2] == 10 * MS
    assert scheduler.cancel(first)
    assert not scheduler.cancel(first)

    assert settle(scheduler, 3 * MS)[2] == 13 * MS

    decision = scheduler.next(13 * MS)

    assert isinstance(decision, Run)
    assert not scheduler.cancel(second)
