"""PriorityQueue: limits, timeouts, deadlines, cancelling, and what it costs."""

from __future__ import annotations

import gc
import weakref

import pytest

from edge_serve.errors import Unavailable
from edge_serve.scheduling.core import QueuePolicy
from edge_serve.scheduling.queue import PriorityQueue
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
def test_a_deadline_ends_the_wait_whatever_the_policy(delay: bool) -> None:
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
