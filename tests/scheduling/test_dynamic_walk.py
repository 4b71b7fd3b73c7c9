"""DynamicScheduler against the plain reference, decision by decision, over random lives of a model."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edge_serve.scheduling.core import DynamicBatching, QueuePolicy
from tests.examples import seeds

from .simulation import Asked, World

POLICIES = st.builds(
    QueuePolicy,
    delay_on_timeout=st.booleans(),
    default_timeout_us=st.sampled_from([0, 5, 40]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 1, 5]),
)


@st.composite
def batchings(draw: st.DrawFn) -> DynamicBatching:
    size = draw(st.integers(0, 8))
    levels = draw(st.sampled_from([0, 1, 3]))
    return DynamicBatching(
        max_batch_size=size,
        preferred_batch_sizes=tuple(draw(st.lists(st.integers(1, max(1, size)), max_size=3))),
        max_queue_delay_us=draw(st.sampled_from([0, 10, 30])),
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_policy=draw(POLICIES),
        policies=draw(st.dictionaries(st.integers(1, 3), POLICIES, max_size=2)),
    )


REQUESTS = st.builds(
    Asked,
    rows=st.integers(0, 4),
    key=st.sampled_from([None, "other"]),
    priority=st.integers(0, 4),
    timeout_us=st.sampled_from([0, 2, 10, 100]),
    deadline_us=st.sampled_from([0, 1, 8, 25]),
)


class Life(RuleBasedStateMachine):
    """One model: requests come and go, instances work, die and come back, and the clock jumps."""

    world: World

    @initialize(batching=batchings(), instances=st.integers(1, 3), passive=st.sampled_from([(), (0,)]))
    def start(self, batching: DynamicBatching, instances: int, passive: tuple[int, ...]) -> None:
        self.world = World(batching, instances, passive)

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=10))
    def add(self, requests: list[Asked]) -> None:
        for asked in requests:
            self.world.add(asked)
        self.world.settle()

    @rule(us=st.sampled_from([0, 1, 3, 10, 50]))
    def pass_time(self, us: int) -> None:
        self.world.pass_time(us)
        self.world.settle()

    @rule()
    def sleep(self) -> None:
        self.world.sleep()
        self.world.settle()

    @precondition(lambda self: self.world.busy)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.world.finish(data.draw(st.sampled_from(sorted(self.world.busy))))
        self.world.settle()

    @rule(data=st.data(), late_reply=st.booleans())
    def lose(self, data: st.DataObject, late_reply: bool) -> None:
        self.world.lose(data.draw(st.sampled_from(self.world.instances)), late_reply)
        self.world.settle()

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.world.come_back(data.draw(st.sampled_from(self.world.instances)))
        self.world.settle()

    @precondition(lambda self: self.world.answers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(list(self.world.answers))))
        self.world.settle()

    @rule()
    def drain(self) -> None:
        self.world.drain()
        self.world.settle()

    @rule()
    def stop(self) -> None:
        self.world.stop()
        self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


@pytest.mark.parametrize("count", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_any_life(count: int) -> None:
    run_state_machine_as_test(Life, settings=settings(max_examples=count, stateful_step_count=20, deadline=None))


def _batching(random: Random) -> DynamicBatching:
    size, levels = random.randint(0, 8), random.choice([0, 0, 1, 3])
    policies = [
        QueuePolicy(
            random.random() < 0.5,
            random.choice([0, 0, 0, 5, 40]),
            random.random() < 0.5,
            random.choice([0, 0, 0, 1, 5]),
        )
        for _ in range(3)
    ]
    return DynamicBatching(
        size,
        tuple(random.sample(range(1, size + 1), random.randint(0, min(3, size)))),
        random.choice([0, 10, 30]),
        priority_levels=levels,
        default_priority_level=random.randint(1, levels) if levels else 0,
        default_policy=policies[0],
        policies={level: random.choice(policies) for level in random.sample(range(1, 4), random.randint(0, 2))},
    )


def _asked(random: Random) -> Asked:
    return Asked(
        random.choice([1, 1, 1, 1, 2, 3, 0]),
        random.choice([None] * 6 + ["other"]),
        random.randint(0, 4),
        random.choice([0, 0, 2, 10, 100]),
        random.choice([0, 0, 0, 0, 1, 8, 25]),
    )


def _step(world: World, random: Random) -> None:
    match random.choices(range(7), [8, 4, 3, 6, 1, 2, 2])[0]:
        case 0:
            for _ in range(random.choice([1, 1, 1, 2, 3, 6])):
                world.add(_asked(random))
        case 1:
            world.pass_time(random.choice([0, 1, 3, 10, 50]))
        case 2:
            world.sleep()
        case 3 if world.busy:
            world.finish(random.choice(sorted(world.busy)))
        case 4:
            world.lose(random.choice(world.instances), random.random() < 0.5)
        case 5:
            world.come_back(random.choice(world.instances))
        case 6 if world.answers:
            recent = list(world.answers)[-8:]
            world.cancel(random.choice(recent))


@seeds(4, 12)
def test_long_lives_under_load(seed: int) -> None:
    random = Random(seed)
    for _ in range(40):
        world = World(_batching(random), random.randint(1, 3), random.choice([(), (), (0,)]))
        for _ in range(60):
            _step(world, random)
            world.settle()
        if random.random() < 0.3:
            world.stop()
            world.add(_asked(random))
        world.end()
