"""PriorityQueue: limits, timeouts, deadlines, cancelling, and costs. Instances: which one gets the next batch."""

from __future__ import annotations

import gc
import weakref

import pytest

from edge_serve.errors import Unavailable
from edge_serve.scheduling.core import QueuePolicy
from edge_serve.scheduling.queue import Instances, PriorityQueue
from tests.footprint import footprint

from .simulation import US, entry


@pytest.mark.parametrize(
    ("policy", "request_us", "expires_us"),
    [
        (QueuePolicy(), 5, 0),
        (QueuePolicy(allow_timeout_override=True), 5, 0),
        (QueuePolicy(default_timeout_us=10), 0, 10),
        (QueuePolicy(default_timeout_us=10), 5, 10),
        (QueuePolicy(default_timeout_us=10, allow_timeout_override=True), 5, 5),
        (QueuePolicy(default_timeout_us=10, allow_timeout_override=True), 10, 10),
        (QueuePolicy(default_timeout_us=10, allow_timeout_override=True), 20, 10),
        (QueuePolicy(default_timeout_us=10, allow_timeout_override=True), 0, 10),
    ],
)
def test_a_request_may_only_shorten_its_timeout(policy: QueuePolicy, request_us: int, expires_us: int) -> None:
    queue = PriorityQueue(policy)
    one = entry(timeout_us=request_us)
    queue.add(one, 0, 1000)

    assert one.timeout_at_ns == queue.next_expiry_ns() == (1000 + expires_us * US if expires_us else 0)


def test_reject_when_the_timeout_is_reached() -> None:
    queue = PriorityQueue(QueuePolicy(default_timeout_us=10))
    one, two = entry(), entry()
    queue.add(one, 0, 0)
    queue.add(two, 0, 1)

    assert queue.expire(10 * US - 1) is None

    refused = queue.expire(10 * US)

    assert refused is not None
    assert refused.entry is one
    assert isinstance(refused.error, Unavailable)
    assert refused.error.message == "Request timeout expired"
    assert queue.expire(10 * US) is None
    assert list(queue.walk()) == [two]


def test_delayed_entries_come_after_their_level_and_before_the_next() -> None:
    queue = PriorityQueue(QueuePolicy(delay_on_timeout=True, default_timeout_us=10))
    late, fresh, lower = entry(id="late"), entry(id="fresh"), entry(id="lower")
    queue.add(late, 1, 0)
    queue.add(lower, 2, 9 * US)
    queue.add(fresh, 1, 9 * US)
    assert queue.expire(10 * US) is None

    assert [one.request.id for one in queue.walk()] == ["fresh", "late", "lower"]
    assert queue.next_expiry_ns() == 19 * US
    assert queue.take(3) == [fresh, late, lower]
    assert (len(queue), queue.rows) == (0, 0)


@pytest.mark.parametrize("delay", [False, True])
def test_a_deadline_ends_the_wait_under_any_policy(delay: bool) -> None:
    queue = PriorityQueue(QueuePolicy(delay_on_timeout=delay, default_timeout_us=5))
    one = entry(id="7", deadline_ns=3 * US)
    queue.add(one, 0, 0)
    refused = queue.expire(3 * US)

    assert refused is not None
    assert refused.error.message == "[request id: 7] Request deadline expired: not started within its 'timeout-ms'"
    assert len(queue) == 0


def test_a_deadline_holds_for_a_delayed_entry() -> None:
    queue = PriorityQueue(QueuePolicy(delay_on_timeout=True, default_timeout_us=5))
    queue.add(entry(deadline_ns=8 * US), 0, 0)
    assert queue.expire(5 * US) is None
    assert queue.next_expiry_ns() == 8 * US

    assert queue.expire(8 * US) is not None


def test_full_per_level_delayed_ones_included() -> None:
    policy = QueuePolicy(delay_on_timeout=True, default_timeout_us=5, max_queue_size=2)
    queue = PriorityQueue(QueuePolicy(), {1: policy})
    queue.add(entry(), 1, 0)
    queue.add(entry(), 1, 0)
    queue.add(entry(), 2, 0)
    assert queue.expire(5 * US) is None
    with pytest.raises(Unavailable) as caught:
        queue.add(entry(), 1, 6 * US)

    assert caught.value.message == "[request id: <id_unknown>] Exceeds maximum queue size"

    queue.take(1)
    queue.add(entry(), 1, 6 * US)


def test_cancel_knows_only_what_is_queued() -> None:
    queue, other = PriorityQueue(QueuePolicy()), PriorityQueue(QueuePolicy())
    one, never = entry(), entry()
    queue.add(one, 0, 0)
    other.add(entry(), 0, 0)

    assert not queue.cancel(never)
    assert not other.cancel(one)
    assert queue.cancel(one)
    assert not queue.cancel(one)


class Freed(dict[str, str]):
    """A request's parameters that tell when they are freed."""


@pytest.mark.parametrize("leave", ["take", "cancel", "expire"])
def test_nothing_that_left_is_referred_to(leave: str) -> None:
    queue = PriorityQueue(QueuePolicy(default_timeout_us=10))
    one = entry(deadline_ns=10**9)
    parameters = Freed()
    one.request.parameters = parameters  # type: ignore[assignment]  # a dict that can be watched
    freed = weakref.ref(parameters)
    queue.add(one, 0, 0)
    match leave:
        case "take":
            queue.take(1)
        case "cancel":
            queue.cancel(one)
        case _:
            queue.expire(10 * US)
    del one, parameters
    gc.collect()

    assert freed() is None


def test_clocks_of_entries_that_left_do_not_pile_up() -> None:
    queue = PriorityQueue(QueuePolicy(default_timeout_us=10**9))
    for now_ns in range(10_000):
        queue.add(entry(deadline_ns=10**15), 0, now_ns)
        queue.take(1)

    assert footprint(queue) < 2000  # about five objects for each of at most 200 clocks


def test_a_level_keeps_its_place_when_it_runs_empty() -> None:
    queue, sizes = PriorityQueue(QueuePolicy()), set()
    for _ in range(3):
        queue.add(entry(id="low"), 5, 0)
        queue.add(entry(id="high"), 1, 0)
        queue._check()
        assert [one.request.id for one in queue.take(2)] == ["high", "low"]
        queue._check()
        sizes.add(footprint(queue) // 5)  # a count more or less is the same

    assert len(sizes) == 1


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
    assert (instances.has(0), instances.idle) == (False, [2])


def test_instances_are_lost_when_none_that_takes_work_is_left() -> None:
    assert not Instances(2, {0, 1}).is_lost(), "they have never taken work"
    instances = Instances(3, {2})
    instances.lost(0)
    instances.lost(2)
    assert not instances.is_lost()
    assert instances.take() == 1
    assert not instances.is_lost(), "it is only busy"
    instances.retire(1)
    assert instances.is_lost(), "it takes no new work"
    instances.done(1)
    assert instances.is_lost()
    instances.back(0)
    assert not instances.is_lost()
    instances.retire(0)
    assert not instances.is_lost(), "there is no instance to wait for"


def test_a_retired_instance_that_is_lost_is_removed() -> None:
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
    instances = Instances(5, {4})
    instances.rank = ranks.__getitem__
    first = [instances.take(), instances.take()]
    instances.done(1)
    instances.done(3)

    assert first == [1, 3]
    assert [instances.take() for _ in range(4)] == [3, 1, 2, 0]
    instances._check()
