"""DirectScheduler: first come, first served, one at a time."""

from __future__ import annotations

from random import Random

from edge_serve.scheduling.core import Entry
from edge_serve.scheduling.direct import BURST_REQUESTS, FASTER_NS, OVERDUE_NS, DirectScheduler
from tests.examples import seeds

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


def short(scheduler: DirectScheduler, count: int, execution_ns: int = 5_000) -> None:
    """A model of 5 us, and so many requests."""
    for _ in range(100):
        scheduler.pace(execution_ns)
    for number in range(count):
        scheduler.add(entry(0, id=str(number)), 0)


def test_short_executions_travel_together_to_one_instance_which_has_its_next_run_before_it_asks() -> None:
    scheduler = DirectScheduler(2)
    short(scheduler, 3 * BURST_REQUESTS)
    runs, _, until_ns = settle(scheduler, 0)

    numbers = [str(number) for number in range(3 * BURST_REQUESTS)]
    assert ids(runs) == [numbers[:BURST_REQUESTS], numbers[BURST_REQUESTS : 2 * BURST_REQUESTS]]
    assert [(run.instance, run.each) for run in runs] == [(0, True), (0, True)]
    assert until_ns == OVERDUE_NS

    scheduler.done(0)
    (run,), _, until_ns = settle(scheduler, 1)
    assert (run.instance, ids([run]), until_ns) == (0, [numbers[2 * BURST_REQUESTS :]], None)


def test_an_instance_that_is_faster_than_the_front_end_gets_no_small_run_before_its_reply() -> None:
    scheduler = DirectScheduler(1)
    short(scheduler, 4)
    assert ids(settle(scheduler, 0)[0]) == [["0", "1", "2", "3"]]

    short(scheduler, 3)
    assert settle(scheduler, 0)[0] == []
    short(scheduler, 1)
    assert len(settle(scheduler, 0)[0][0].entries) == 4, "as many as it has in hand"

    short(scheduler, 3)
    scheduler.done(0)
    assert settle(scheduler, 0)[0] == []
    scheduler.done(0)
    assert len(settle(scheduler, 0)[0][0].entries) == 3, "all its replies have come"


def test_an_instance_that_is_slower_than_the_front_end_gets_any_run_before_its_reply() -> None:
    scheduler = DirectScheduler(1)
    short(scheduler, 4, FASTER_NS)
    settle(scheduler, 0)
    short(scheduler, 1, FASTER_NS)

    assert len(settle(scheduler, 0)[0]) == 1


def test_another_instance_helps_when_short_executions_take_long() -> None:
    scheduler = DirectScheduler(2)
    short(scheduler, 2 * BURST_REQUESTS + 3)
    assert settle(scheduler, 0)[2] == OVERDUE_NS
    (late,), _, until_ns = settle(scheduler, OVERDUE_NS)

    assert (late.instance, len(late.entries), until_ns) == (1, 3, None)

    for instance in (0, 1, 0):  # the first of the two runs of instance 0, the run of 1, the second of 0
        scheduler.done(instance)
        scheduler._check()
    scheduler.add(entry(0, id="last"), 0)
    assert len(settle(scheduler, 0)[0]) == 1


def test_whether_entries_may_be_looked_at_together() -> None:
    scheduler = DirectScheduler(1)
    short(scheduler, 1)
    assert not scheduler.gathers  # the instance is idle: at once
    settle(scheduler, 0)
    assert scheduler.gathers
    scheduler.done(0)
    assert not scheduler.gathers


def test_both_runs_are_lost_with_their_instance() -> None:
    scheduler = DirectScheduler(1)
    short(scheduler, 2 * BURST_REQUESTS + 1)
    assert len(settle(scheduler, 0)[0]) == 2

    scheduler.lost(0)
    assert settle(scheduler, 0) == ([], [], None)
    scheduler.back(0)
    (run,) = settle(scheduler, 0)[0]
    assert (run.instance, len(run.entries)) == (0, 1)


def test_an_overdue_request_of_a_calling_model_runs_on_another_instance() -> None:
    scheduler = DirectScheduler(2, calls=True)
    short(scheduler, 2 * BURST_REQUESTS)

    assert [run.instance for run in settle(scheduler, 0)[0]] == [0]
    assert [run.instance for run in settle(scheduler, OVERDUE_NS)[0]] == [1]


def test_with_ranked_instances_none_has_a_second_run() -> None:
    """The rate limiter counts one run for each instance."""
    scheduler = DirectScheduler(1)
    scheduler.prefer(lambda instance: instance)
    short(scheduler, 2 * BURST_REQUESTS)

    assert len(settle(scheduler, 0)[0]) == 1


@seeds(2, 5)
def test_walk_of_short_executions(seed: int) -> None:
    """FIFO, each entry once, at most two runs for an instance, and something runs whenever something waits."""
    random = Random(seed)
    scheduler = DirectScheduler(3)
    short(scheduler, 0)
    running: dict[int, int] = {0: 0, 1: 0, 2: 0}
    retiring, fresh = set[int](), 3
    waiting, lost, now = list[Entry](), set[int](), 0
    for _ in range(3000):
        now += random.choice([1, 1000, OVERDUE_NS])
        busy = [instance for instance, count in running.items() if count]
        match random.randint(0, 8):
            case 0 | 1 | 2:
                for _ in range(random.randint(1, 2 * BURST_REQUESTS)):
                    waiting.append(entry(now))
                    scheduler.add(waiting[-1], now)
            case 3 | 4 if busy:
                instance = random.choice(busy)
                running[instance] -= 1
                scheduler.done(instance)
            case 5 if busy:
                instance = random.choice(busy)
                running[instance] = 0
                lost.add(instance)
                scheduler.lost(instance)
            case 6 if lost:
                scheduler.back(lost.pop())
            case 7 if len(running) - len(retiring) < 4:
                running[fresh] = 0
                scheduler.add_instance(fresh)
                fresh += 1
            case 8 if len(running) - len(retiring) > 1:
                instance = random.choice(sorted(running.keys() - retiring))
                retiring.add(instance)
                scheduler.retire_instance(instance)
        for instance in [one for one in retiring if not running[one]]:
            assert not scheduler.has_instance(instance), "it does not end"
            retiring.remove(instance)
            lost.discard(instance)
            del running[instance]
        for run in settle(scheduler, now)[0]:
            assert run.instance not in lost | retiring
            assert run.entries == waiting[: len(run.entries)]
            del waiting[: len(run.entries)]
            running[run.instance] += 1
        assert max(running.values()) <= 2
        assert not waiting or any(running.values()) or lost == running.keys()
        assert scheduler.pending() == len(waiting)
        scheduler._check()


def test_one_long_execution_after_short_ones_is_noticed_by_the_mean() -> None:
    scheduler = DirectScheduler(2)
    for _ in range(100):
        scheduler.pace(5_000)
    scheduler.pace(50 * MS)
    for number in range(4):
        scheduler.add(entry(0, id=str(number)), 0)

    assert ids(settle(scheduler, 0)[0]) == [["0"], ["1"]]


@seeds(2, 5)
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


def test_an_instance_that_retires_takes_no_further_run_ahead() -> None:
    scheduler = DirectScheduler(1)
    short(scheduler, 3 * BURST_REQUESTS)
    runs, _, _ = settle(scheduler, 0)
    assert [run.instance for run in runs] == [0, 0], "one ahead"

    scheduler.retire_instance(0)
    scheduler.add_instance(1)
    runs, _, _ = settle(scheduler, 0)
    assert {run.instance for run in runs} == {1}
    scheduler._check()
    for _ in range(2):
        assert scheduler.has_instance(0)
        scheduler.done(0)
    assert not scheduler.has_instance(0)
    scheduler._check()
    assert {run.instance for run in settle(scheduler, 0)[0]} <= {1}
