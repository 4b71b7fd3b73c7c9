"""Second seats: when an instance gets its next batch while one runs, and that both are counted."""

from __future__ import annotations

from random import Random

import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.scheduling.core import DynamicBatching, Entry, Run, Scheduler
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.policy import scheduler_for
from edge_serve.scheduling.seats import MARGIN_NS
from tests.examples import seeds

from .device_simulation import CHOSEN, MODELS, Load, rate
from .simulation import MS, entry, ids, settle

#: how long batches run in these tests
RUN = 10 * MS


def batcher(rows: int = 4, instances: int = 1, **settings: object) -> DynamicScheduler:
    """A scheduler whose instances have second seats. Batches of one and of two rows have run for RUN."""
    scheduler = DynamicScheduler(DynamicBatching(rows, **settings), instances)  # type: ignore[arg-type]
    for instance in range(instances):
        scheduler.add_second_seat(instance)
    for size in (1, 2):
        scheduler.add(entry(-2 * RUN, rows=size), -2 * RUN)
        (run,) = settle(scheduler, -2 * RUN)[0]
        finish(scheduler, run.instance, -2 * RUN, -RUN)
    return scheduler


def finish(scheduler: Scheduler, instance: int, ready_ns: int, end_ns: int) -> None:
    """The older batch of an instance is done, as the driver says it."""
    scheduler.ran(instance, ready_ns, end_ns)
    scheduler.done(instance)


def add(scheduler: Scheduler, *names: str, now: int = 0, **more: int) -> None:
    for name in names:
        scheduler.add(entry(now, id=name, **more), now)


def test_batch_that_is_not_full_waits_until_shortly_before_the_running_one_ends() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    assert ids(settle(scheduler, 0)[0]) == [["a"]]
    add(scheduler, "b")
    due = RUN - MARGIN_NS
    assert settle(scheduler, 0) == ([], [], due)
    add(scheduler, "c", now=due - 1)
    assert settle(scheduler, due - 1) == ([], [], due)

    assert ids(settle(scheduler, due)[0]) == [["b", "c"]]

    add(scheduler, "d", now=due)
    assert settle(scheduler, due) == ([], [], None), "both seats are taken"


def test_second_batch_runs_from_the_end_of_the_first() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    settle(scheduler, 0)
    add(scheduler, "b")
    settle(scheduler, RUN - MARGIN_NS)
    add(scheduler, "c", now=RUN)
    finish(scheduler, 0, 0, RUN)

    assert settle(scheduler, RUN) == ([], [], 2 * RUN - MARGIN_NS)


def test_batch_is_sent_earlier_when_inputs_take_long_to_the_device() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    settle(scheduler, 0)
    finish(scheduler, 0, 4 * MS, RUN)
    add(scheduler, "b", now=RUN)
    settle(scheduler, RUN)
    add(scheduler, "c", now=RUN)

    assert settle(scheduler, RUN) == ([], [], 2 * RUN - 2 * MS - MARGIN_NS), "a half of what was new"


def test_full_batch_takes_the_second_seat_at_once() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    settle(scheduler, 0)
    add(scheduler, "b", "c", "d")
    assert settle(scheduler, 0)[0] == []
    add(scheduler, "e")

    assert ids(settle(scheduler, 0)[0]) == [["b", "c", "d", "e"]]


def test_largest_preferred_size_is_full() -> None:
    scheduler = batcher(8, preferred_batch_sizes=(2, 3))
    add(scheduler, "a", "b")
    settle(scheduler, 0)
    add(scheduler, "c", "d")
    assert settle(scheduler, 0)[0] == [], "it may still reach 3"
    add(scheduler, "e")

    assert ids(settle(scheduler, 0)[0]) == [["c", "d", "e"]]


def test_full_batch_waits_where_a_higher_priority_may_still_arrive() -> None:
    scheduler = batcher(2, priority_levels=2, default_priority_level=2)
    add(scheduler, "a", "b")
    settle(scheduler, 0)
    add(scheduler, "c", "d")
    assert settle(scheduler, 0) == ([], [], RUN - MARGIN_NS)
    add(scheduler, "urgent", priority=1)

    assert ids(settle(scheduler, RUN - MARGIN_NS)[0]) == [["urgent", "c"]]


def test_delay_of_a_batch_counts_in_the_second_seat_too() -> None:
    scheduler = DynamicScheduler(DynamicBatching(4, max_queue_delay_us=5_000), 1)
    scheduler.add_second_seat(0)
    for name in "abcd":
        add(scheduler, name)
    assert ids(settle(scheduler, 0)[0]) == [["a", "b", "c", "d"]]
    add(scheduler, "e")

    assert settle(scheduler, 0) == ([], [], 5 * MS), "no batch of 4 rows has run yet: the seat is due"
    assert ids(settle(scheduler, 5 * MS)[0]) == [["e"]]


def test_idle_instance_comes_before_a_second_seat_and_then_the_one_that_ends_first() -> None:
    scheduler = batcher(instances=2)
    add(scheduler, "a")
    (first,) = settle(scheduler, 0)[0]
    add(scheduler, "b", now=MS)
    (second,) = settle(scheduler, MS)[0]
    assert {first.instance, second.instance} == {0, 1}
    add(scheduler, "c", now=MS)
    assert settle(scheduler, MS) == ([], [], RUN - MARGIN_NS)

    (third,) = settle(scheduler, RUN - MARGIN_NS)[0]
    assert third.instance == first.instance


def test_requests_expire_while_the_second_seat_is_not_due() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    settle(scheduler, 0)
    add(scheduler, "b", deadline_ns=MS)
    assert settle(scheduler, 0) == ([], [], MS)
    _, (refused,), until_ns = settle(scheduler, MS)

    assert (refused.entry.request.id, until_ns) == ("b", None)


def test_eager_batching_takes_the_second_seat_at_once() -> None:
    config = pb.ModelConfig(max_batch_size=4)
    config.dynamic_batching.SetInParent()
    config.optimization.eager_batching = True
    scheduler = scheduler_for(config, 1)
    scheduler.add_second_seat(0)
    for name in "abc":
        add(scheduler, name)
        settle(scheduler, 0)

    assert scheduler.pending() == 1, "the third waits for a seat"


def test_batch_that_was_not_executed_teaches_nothing() -> None:
    scheduler = batcher()
    add(scheduler, "a")
    settle(scheduler, 0)
    finish(scheduler, 0, 0, 0)
    add(scheduler, "b")
    settle(scheduler, 0)
    add(scheduler, "c")

    assert settle(scheduler, 0) == ([], [], RUN - MARGIN_NS)


def test_without_a_batcher_each_request_takes_any_free_seat() -> None:
    scheduler = DirectScheduler(2)
    scheduler.add_second_seat(0)
    add(scheduler, *"abcd")
    runs, _, until_ns = settle(scheduler, 0)

    assert ids(runs) == [["a"], ["b"], ["c"]], "instance 1 has one seat"
    assert ([run.instance for run in runs], until_ns) == ([0, 1, 0], None)
    finish(scheduler, 0, 0, MS)
    assert ids(settle(scheduler, MS)[0]) == [["d"]]


def test_short_executions_without_a_batcher_share_a_hop_in_both_seats() -> None:
    scheduler = DirectScheduler(1)
    scheduler.add_second_seat(0)
    for _ in range(100):
        scheduler.pace(50_000)
    add(scheduler, *"abcdefghi")
    runs, _, until_ns = settle(scheduler, 0)

    assert [(ids([run]), run.each) for run in runs] == [([[*"abcd"]], True), ([[*"efgh"]], True)]
    assert (scheduler.pending(), until_ns) == (1, None)


def test_sequences_get_no_second_batch() -> None:
    config = pb.ModelConfig(max_batch_size=2)
    config.sequence_batching.SetInParent()
    scheduler = scheduler_for(config, 1)
    scheduler.add_second_seat(0)
    for correlation_id in (1, 2):
        one = entry(0, id=str(correlation_id))
        one.request.correlation_id, one.request.flags = correlation_id, 1
        scheduler.add(one, 0)
        if correlation_id == 1:
            assert len(settle(scheduler, 0)[0]) == 1

    assert settle(scheduler, 0)[0] == []


def test_instance_that_retires_finishes_both_batches_and_takes_no_third() -> None:
    scheduler = batcher(1)
    add(scheduler, *"abc")
    assert len(settle(scheduler, 0)[0]) == 2
    scheduler.retire_instance(0)
    for left in (True, False):
        finish(scheduler, 0, 0, RUN)
        assert scheduler.has_instance(0) is left
        assert settle(scheduler, RUN)[0] == []
        scheduler._check()


def test_instance_that_retires_and_dies_is_removed() -> None:
    scheduler = batcher(1)
    add(scheduler, *"ab")
    settle(scheduler, 0)
    scheduler.retire_instance(0)
    scheduler.lost(0)

    assert not scheduler.has_instance(0)
    scheduler._check()


@seeds(2, 8)
@pytest.mark.parametrize("make", [lambda: batcher(4, 3), lambda: DirectScheduler(3)])
def test_walk(seed: int, make: object) -> None:
    """FIFO, each entry once, at most two batches for an instance and none for one that is lost or retires; an entry
    waits only where every instance is busy, and never past the end of a batch."""
    random = Random(seed)
    scheduler = make()  # type: ignore[operator]
    seated = {0, 1}
    for instance in seated:
        scheduler.add_second_seat(instance)
    if isinstance(scheduler, DynamicScheduler):
        seated = {0, 1, 2}
    running: dict[int, int] = {0: 0, 1: 0, 2: 0}
    lost, retiring, fresh = set[int](), set[int](), 3
    waiting, now = list[Entry](), 0
    for _ in range(800):
        now += random.choice([1, MS, RUN])
        busy = [instance for instance, count in running.items() if count]
        match random.randint(0, 7):
            case 0 | 1 | 2:
                for _ in range(random.randint(1, 5)):
                    waiting.append(entry(now))
                    scheduler.add(waiting[-1], now)
            case 3 | 4 if busy:
                instance = random.choice(busy)
                running[instance] -= 1
                finish(scheduler, instance, *random.choice([(0, 0), (now, now)]))
            case 5 if busy:
                instance = random.choice(busy)
                running[instance] = 0
                lost.add(instance)
                scheduler.lost(instance)
            case 6 if lost:
                scheduler.back(lost.pop())
            case 7 if len(running) < 5:
                scheduler.add_instance(fresh)
                running[fresh] = 0
                if random.random() < 0.5:
                    scheduler.add_second_seat(fresh)
                    seated.add(fresh)
                fresh += 1
            case 7 if len(running) - len(retiring) > 1:
                instance = random.choice(sorted(running.keys() - retiring))
                retiring.add(instance)
                scheduler.retire_instance(instance)
        runs: list[Run] = settle(scheduler, now)[0]
        for run in runs:
            assert run.instance not in lost | retiring
            assert run.entries == waiting[: len(run.entries)]
            del waiting[: len(run.entries)]
            running[run.instance] += 1
        for instance in [one for one in retiring if not running[one]]:
            assert not scheduler.has_instance(instance), "it does not end"
            retiring.remove(instance)
            lost.discard(instance)
            del running[instance]
        assert all(count <= (2 if instance in seated else 1) for instance, count in running.items())
        alive = running.keys() - lost - retiring
        assert not waiting or all(running[instance] for instance in alive)
        assert scheduler.pending() == len(waiting)
        scheduler._check()


@pytest.mark.parametrize(
    ("model", "clients", "beside_one_seat", "beside_at_once"),
    [
        ("0.5 + 0.2 ms", 8, 1.2, 1.05),  # the gap is longer than what a batch costs, but not than two
        ("3 + 0.02 ms", 8, 1.08, 1.3),  # batches are nearly free: two small ones are worse than a large one
        ("2 + 0.5 ms", 32, 1.05, 0.99),  # full batches
        ("2 + 0.5 ms", 1, 1.0, 1.0),  # one client has no second request
    ],
)
def test_simulated_device_answers_more_than_with_one_seat_or_with_small_batches(
    model: str, clients: int, beside_one_seat: float, beside_at_once: float
) -> None:
    load = Load(clients, *MODELS[model])
    found, _, busy = rate(load, CHOSEN, 0.5)

    assert found >= beside_one_seat * rate(load, "one seat", 0.5)[0]
    assert found >= beside_at_once * rate(load, "at once", 0.5)[0]
    assert busy >= 0.96 or clients == 1
