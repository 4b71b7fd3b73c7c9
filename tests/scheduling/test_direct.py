"""DirectScheduler: first come, first served, one at a time."""

from __future__ import annotations

from random import Random

import pytest

from edge_serve.scheduling.core import Entry
from edge_serve.scheduling.direct import BURST_REQUESTS, OVERDUE_NS, DirectScheduler

from .simulation import MS, entry, ids, settle


def test_each_idle_instance_takes_one() -> None:
    scheduler = DirectScheduler(2)
    for number in range(4):
        scheduler.add(entry(0, id=str(number), priority=4 - number, rows=2), 0)
    runs, _, until_ns = settle(scheduler, 0)

    assert ids(runs) == [["0"], ["1"]]
    assert [run.instance for run in runs] == [0, 1]
    assert until_ns is None

    scheduler.done(1)
    (run,) = settle(scheduler, 0)[0]

    assert (run.instance, ids([run])) == (1, [["2"]])


def test_request_timeouts_mean_nothing_and_deadlines_count() -> None:
    scheduler = DirectScheduler(1, passive=[0])
    scheduler.add(entry(0, id="a", timeout_us=1), 0)
    scheduler.add(entry(0, id="b", deadline_ns=5 * MS), 0)
    assert settle(scheduler, 0) == ([], [], 5 * MS)
    _, (refused,), until_ns = settle(scheduler, 5 * MS)

    assert refused.entry.request.id == "b"
    assert until_ns is None
    assert scheduler.pending() == 1


def test_short_executions_travel_together_to_one_instance() -> None:
    scheduler = DirectScheduler(2)
    for _ in range(100):
        scheduler.pace(10_000)
    for number in range(BURST_REQUESTS + 2):
        scheduler.add(entry(0, id=str(number)), 0)
    (run,), _, until_ns = settle(scheduler, 0)

    assert run.each
    assert ids([run]) == [[str(number) for number in range(BURST_REQUESTS)]]
    assert until_ns == OVERDUE_NS  # then the second instance helps

    (late,), _, until_ns = settle(scheduler, OVERDUE_NS)
    assert (late.instance, late.each, ids([late])) == (1, True, [["8", "9"]])


def test_one_long_execution_after_short_ones_is_noticed_by_the_mean() -> None:
    scheduler = DirectScheduler(2)
    for _ in range(100):
        scheduler.pace(10_000)
    scheduler.pace(50 * MS)
    for number in range(4):
        scheduler.add(entry(0, id=str(number)), 0)

    assert ids(settle(scheduler, 0)[0]) == [["0"], ["1"]]


@pytest.mark.parametrize("seed", range(5))
def test_walk(seed: int) -> None:
    """FIFO whatever happens, each entry once, an idle instance and a waiting entry never at the same time."""
    random = Random(seed)
    scheduler = DirectScheduler(3)
    idle, waiting, now = {0, 1, 2}, list[Entry](), 0
    for _ in range(2000):
        now += random.randint(0, 2)
        match random.randint(0, 5):
            case 0 | 1:
                one = entry(now, deadline_ns=random.choice([0, now + 9]))
                scheduler.add(one, now)
                waiting.append(one)
            case 2 | 3 if len(idle) < 3:
                instance = random.choice(sorted({0, 1, 2} - idle))
                scheduler.lost(instance)
                scheduler.back(instance)
                idle.add(instance)
            case 4 if idle:
                scheduler.lost(instance := random.choice(sorted(idle)))
                idle.remove(instance)
            case 5 if waiting:
                assert scheduler.cancel(waiting.pop(random.randrange(len(waiting))))
        runs, refused, _ = settle(scheduler, now)
        assert [one.entry for one in refused] == [w for w in waiting if 0 < w.request.deadline_ns <= now]
        waiting = [w for w in waiting if not 0 < w.request.deadline_ns <= now]
        assert [run.entries for run in runs] == [[w] for w in waiting[: len(idle)]]
        idle -= {run.instance for run in runs}
        waiting = waiting[len(runs) :]
        assert scheduler.pending() == len(waiting)
        scheduler._check()

    assert scheduler.drain() == waiting
    assert scheduler.pending() == 0
