"""The rate limiter: what may run, in which order, and that no claimant waits for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_serve.config.settings.server_values import RateLimitResource
from edge_serve.errors import InvalidArgument
from edge_serve.scheduling.rate_limiter import Claimant, RateLimiter, Resource
from tests.footprint import footprint


def needs(*, device: int = 0, **counts: int) -> dict[Resource, int]:
    """Resources of a device; names in capitals are global."""
    return {Resource(name, None if name.isupper() else device): count for name, count in counts.items()}


def limiter(*claimants: Claimant, explicit: tuple[RateLimitResource, ...] = ()) -> RateLimiter:
    made = RateLimiter(explicit)
    made.add(claimants)
    return made


def startable(of: RateLimiter) -> list[Claimant]:
    started = []
    while (claimant := of.next()) is not None:
        started.append(claimant)
    of._check()
    return started


def test_without_given_counts_the_largest_claimant_fits_and_nothing_more() -> None:
    small, large = Claimant(needs(r=1)), Claimant(needs(r=4))
    of = limiter(small, large)
    of.ask(large)
    of.ask(small)

    assert startable(of) == [large]
    of.release(large)
    assert startable(of) == [small]


def test_given_counts_let_more_run_side_by_side() -> None:
    first, second, third = (Claimant(needs(r=2)) for _ in range(3))
    of = limiter(first, second, third, explicit=(RateLimitResource("r", 4),))
    for claimant in (first, second, third):
        of.ask(claimant)

    assert startable(of) == [first, second]


def test_a_waiting_claimant_blocks_only_claimants_of_the_same_resource() -> None:
    holder, large, small, other = Claimant(needs(r=2)), Claimant(needs(r=4)), Claimant(needs(r=1)), Claimant(needs(s=1))
    free = Claimant()
    of = limiter(holder, large, small, other, free)
    of.ask(holder)
    assert startable(of) == [holder]
    for claimant in (large, small, other, free):
        of.ask(claimant)

    assert startable(of) == [other, free]  # `small` would fit, but `large` was first
    of.release(holder)
    assert startable(of) == [large]
    of.release(large)
    assert startable(of) == [small]


def test_priority_weighs_how_often_an_instance_runs() -> None:
    often, seldom = Claimant(needs(r=1), weight=1), Claimant(needs(r=1), weight=3)
    of = limiter(often, seldom)
    ran: Counter[Claimant] = Counter()
    of.ask(often)
    of.ask(seldom)
    for _ in range(400):
        (running,) = startable(of)
        ran[running] += 1
        of.release(running)
        of.ask(running)

    assert 295 <= ran[often] <= 305


@pytest.mark.parametrize("order", ["001001001", "100001001"])
def test_two_models_that_are_always_busy_run_in_the_order_of_triton(order: str) -> None:
    claimants = [Claimant(needs(r=1)), Claimant(needs(r=1), weight=2)]
    of = limiter(*claimants)
    first = int(order[0])
    ran = []
    for claimant in (claimants[first], claimants[1 - first]):
        of.ask(claimant)
        ran += startable(of)
    while len(ran) < len(order):
        of.release(ran[-1])
        of.ask(ran[-1])
        ran += startable(of)

    assert "".join(str(claimants.index(one)) for one in ran) == order


def test_a_model_that_comes_later_does_not_catch_up() -> None:
    old, new = Claimant(needs(r=1)), Claimant(needs(r=1))
    of = limiter(old)
    for _ in range(1000):
        of.ask(old)
        (running,) = startable(of)
        of.release(running)
    of.add([new])
    of.ask(new)
    of.ask(old)
    ran: Counter[Claimant] = Counter()
    for _ in range(20):
        (running,) = startable(of)
        ran[running] += 1
        of.release(running)
        of.ask(running)

    assert ran == {old: 10, new: 10}


def test_several_executions_in_one_go_count_as_several() -> None:
    bursts, single = Claimant(needs(r=1)), Claimant(needs(r=1))
    of = limiter(bursts, single)
    ran: Counter[Claimant] = Counter()
    of.ask(bursts, 4)
    of.ask(single)
    for _ in range(100):
        (running,) = startable(of)
        ran[running] += 1
        of.release(running)
        of.ask(running, 4 if running is bursts else 1)

    assert ran[bursts] == 20


def test_a_global_resource_is_one_stock_and_others_are_of_their_device() -> None:
    here, there = Claimant(needs(device=0, r=1)), Claimant(needs(device=1, r=1))
    one, two = Claimant(needs(device=0, G=1)), Claimant(needs(device=1, G=1))
    of = limiter(here, there, one, two)
    for claimant in (here, there, one, two):
        of.ask(claimant)

    assert startable(of) == [here, there, one]


@pytest.mark.parametrize(
    ("explicit", "wanted", "text"),
    [
        (
            (RateLimitResource("r", 5),),
            needs(r=10),
            'Resource count for "r" is limited to 5 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 10",
        ),
        ((RateLimitResource("s", 5),), needs(r=1), 'Resource count for "r" is limited to 0 which will prevent'),
        ((RateLimitResource("r", 9), RateLimitResource("r", 3)), needs(r=4), "limited to 3"),
        ((RateLimitResource("r", 9, 1),), needs(r=4), "limited to 0"),
        ((), {**needs(r=1), Resource("r", None): 1}, 'Resource "r" is present as both global and device-specific'),
    ],
)
def test_a_claimant_that_can_never_run_is_refused_and_leaves_no_memory(
    explicit: tuple[RateLimitResource, ...], wanted: dict[Resource, int], text: str
) -> None:
    of = RateLimiter(explicit)

    with pytest.raises(InvalidArgument, match=text):
        of.add([Claimant(), Claimant(wanted)])
    assert footprint(of) == footprint(RateLimiter(explicit))
    of.add([Claimant()])


def test_given_counts_of_a_device_serve_global_resources_too() -> None:
    of = RateLimiter((RateLimitResource("G", 2, 3), RateLimitResource("r", 1), RateLimitResource("r", 4, 1)))

    of.add([Claimant(needs(G=2)), Claimant(needs(device=1, r=4))])


def test_a_removed_claimant_releases_its_resources_and_shrinks_the_stock() -> None:
    large, small, other = Claimant(needs(r=4)), Claimant(needs(r=2)), Claimant(needs(r=2))
    of = limiter(large, small, other)
    of.ask(large)
    assert startable(of) == [large]
    of.ask(small)
    of.ask(other)

    of.remove([large])
    assert startable(of) == [small]  # 2 are left


def test_idle_instances_stand_by_whether_they_could_run_and_by_executions() -> None:
    blocked, busy, fresh, tired = Claimant(needs(r=1)), Claimant(needs(r=1)), Claimant(), Claimant(served=5)
    of = limiter(blocked, busy, fresh, tired)
    of.ask(busy)
    startable(of)

    assert sorted((blocked, tired, fresh), key=of.rank) == [fresh, tired, blocked]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=True))
def test_a_walk_never_exceeds_a_stock_and_starves_no_claimant(rng: random.Random) -> None:
    names = ["r", "s", "G"]
    claimants = [
        Claimant(
            needs(device=rng.randrange(2), **{n: rng.randint(1, 4) for n in rng.sample(names, rng.randint(0, 3))}),
            weight=rng.randint(1, 4),
        )
        for _ in range(rng.randint(2, 7))
    ]
    of = limiter(*claimants)
    since: dict[Claimant, int] = {}
    running: list[Claimant] = []
    for _ in range(300):
        idle = [one for one in claimants if not one.waiting and not one.running]
        if idle and rng.random() < 0.6:
            asking = rng.choice(idle)
            of.ask(asking, rng.randint(1, 3))
            since[asking] = 0
        elif running:
            of.release(running.pop(rng.randrange(len(running))))  # done, or its worker was lost
        for started in startable(of):
            running.append(started)
            del since[started]
            for waiting in since:
                since[waiting] += any(resource in waiting.needs for resource in started.needs)
        for resource in {resource for one in running for resource in one.needs}:
            stock = max(one.needs.get(resource, 0) for one in claimants)
            assert sum(one.needs.get(resource, 0) for one in running) <= stock
        # between two turns of one claimant each other has at most as many as their weights and bursts allow
        assert max(since.values(), default=0) <= 12 * 4 * len(claimants)
    while running or since:
        if running:
            of.release(running.pop())
        for started in startable(of):
            running.append(started)
            del since[started]
    of._check()  # what is used is used by those that run
