"""Batches that wait for their resources between drivers and workers: real drivers, workers that answer when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from edge_serve.backends.base import Reply
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.settings.server_values import RateLimitResource
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.models.extras.rate_limit import LimitedModel, RateLimitGate
from edge_serve.models.run.decoupled import DecoupledDriver
from edge_serve.models.run.driver import Driver
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.instance_group import place_instances
from edge_serve.scheduling.core import DynamicBatching, Scheduler
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.rate_limiter import RateLimiter
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.workers import OpenedModel
from tests.footprint import footprint


class Ticks:
    now = 0

    def now_ns(self) -> int:
        self.now += 1000
        return self.now


class Opened:
    """The worker's side of one model."""

    def __init__(self, instances: int) -> None:
        self.numbers = range(instances)
        self.timeout = 0.0
        self.listener: Any = None
        #: instance -> what it runs
        self.running: dict[int, tuple[int, Sequence[InferRequest]]] = {}
        self.told: list[tuple[int, int]] = []

    def seats(self, instance: int) -> int:
        return 2

    def execute(self, instance: int, batch_id: int, requests: Sequence[InferRequest], each: bool = False) -> None:
        assert instance not in self.running
        self.running[instance] = (batch_id, requests)

    def running_since_ns(self) -> int | None:
        return Ticks.now if self.running else None

    def cancel(self, instance: int, batch_id: int, index: int) -> None:
        self.told.append((batch_id, index))

    def set_paused(self, instance: int, batch_id: int, index: int, paused: bool) -> None:
        self.held = paused

    def finish(self, instance: int = 0) -> None:
        batch_id, requests = self.running.pop(instance)
        self.listener.on_reply(instance, BatchReply(batch_id, 1, 2, 3, 4, [Reply() for _ in requests]))

    def die(self, instance: int = 0) -> None:
        self.running.pop(instance, None)
        self.listener.on_lost({instance: Internal("died")})

    @property
    def ids(self) -> list[str]:
        return [request.id for _, requests in self.running.values() for request in requests]


class Model:
    """One limited model as loading puts it together."""

    def __init__(
        self,
        gate: RateLimitGate,
        name: str,
        loop: asyncio.AbstractEventLoop,
        groups: str,
        kind: type[Driver] = Driver,
        batching: DynamicBatching | None = None,
    ) -> None:
        config = parse_model_config(f'name: "{name}" instance_group [ {groups} ]')
        instances = sum(group.count for group in config.instance_group)
        self.opened = Opened(instances)
        self.limited: LimitedModel = gate.admit(place_instances(config))
        scheduler: Scheduler = DirectScheduler(instances)
        if batching is not None:
            scheduler = DynamicScheduler(batching, instances)
        scheduler.prefer(self.limited.rank)
        self.driver = kind(name, "1", scheduler, new_statistics(), Ticks(), loop)
        self.driver.run_one_by_one()
        self.limited.join(self.driver, cast(OpenedModel, self.opened))
        self.got: list[InferResponse] = []

    def ask(self, id: str) -> Any:
        return self.driver.submit(InferRequest("m", id=id), 1, None, self.got.append)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def group(count: int = 1, priority: int = 0, **resources: int) -> str:
    listed = ", ".join(f'{{ name: "{name}" count: {number} }}' for name, number in resources.items())
    return f"{{ count: {count} kind: KIND_CPU rate_limiter {{ resources [ {listed} ] priority: {priority} }} }}"


def test_a_model_waits_while_another_has_what_it_needs(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    first, second, free = (
        Model(gate, "first", loop, group(R=1)),
        Model(gate, "second", loop, group(R=1)),
        Model(gate, "free", loop, group()),
    )
    for model in (first, second, free):
        model.ask(model.driver.name)

    assert [model.opened.ids for model in (first, second, free)] == [["first"], [], ["free"]]
    assert (second.driver.statistics.pending, second.driver.in_flight()) == (1, 1)
    assert first.driver.oldest_batch_seconds() is not None
    assert second.driver.oldest_batch_seconds() is None, "it waits"
    first.opened.finish()
    assert second.opened.ids == ["second"]
    assert (second.driver.statistics.pending, second.driver.in_flight()) == (0, 1)
    second.opened.finish()
    assert [len(model.got) for model in (first, second)] == [1, 1]


def test_a_batch_that_waits_grows(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    model = Model(gate, "m", loop, group(2, R=1), batching=DynamicBatching(8, (1, 3)))
    tickets = [model.ask(id) for id in "abcde"]
    tickets[2].cancel()
    assert model.opened.ids == ["a"]
    assert (model.driver.statistics.pending, model.driver.in_flight()) == (3, 4)

    model.opened.finish(*model.opened.running)
    assert model.opened.ids == ["b", "d", "e"]
    assert (model.driver.statistics.pending, model.driver.in_flight()) == (0, 3)
    tickets[4].cancel()
    assert [index for _, index in model.opened.told] == [2]
    model.opened.finish(*model.opened.running)
    assert len(model.got) == 5


def test_the_weight_of_two_models_that_are_always_busy(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    often, seldom = Model(gate, "often", loop, group(R=1)), Model(gate, "seldom", loop, group(priority=2, R=1))
    for number in range(200):
        often.ask(f"o{number}")
        seldom.ask(f"s{number}")
    for _ in range(90):
        (running,) = [model for model in (often, seldom) if model.opened.running]
        running.opened.finish()

    assert abs(len(often.got) - 60) <= 1
    assert len(often.got) + len(seldom.got) == 90


def test_a_lost_worker_gives_its_resources_back_and_what_waited_for_it_fails(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    first, second = Model(gate, "first", loop, group(R=1)), Model(gate, "second", loop, group(R=1))
    first.ask("a")
    second.ask("b")
    second.opened.die()
    assert [response.error is not None for response in second.got] == [True]
    assert (second.driver.statistics.pending, second.driver.in_flight()) == (0, 0)

    second.opened.listener.on_back(0)
    second.ask("c")
    first.opened.die()
    assert second.opened.ids == ["c"]


def test_an_unloaded_model_leaves_room_and_no_trace(loop: asyncio.AbstractEventLoop) -> None:
    limiter = RateLimiter()
    gate = RateLimitGate(limiter)
    first, second = Model(gate, "first", loop, group(R=1)), Model(gate, "second", loop, group(R=1))
    first.ask("a")
    second.ask("b")
    first.limited.close()

    assert second.opened.ids == ["b"]
    second.opened.finish()
    second.limited.close()
    assert footprint(gate) < footprint(RateLimitGate(RateLimiter())) + 10


def test_a_closed_model_leaves_no_request_pending(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    first, second = Model(gate, "first", loop, group(R=1)), Model(gate, "second", loop, group(R=1))
    first.ask("a")
    second.ask("b")
    second.limited.close()
    second.driver.fail_all(Internal("too late"))

    assert (second.driver.statistics.pending, second.driver.in_flight()) == (0, 0)
    assert [response.error is not None for response in second.got] == [True]


def test_a_worker_that_dies_after_its_model_was_closed_fails_its_requests(loop: asyncio.AbstractEventLoop) -> None:
    model = Model(RateLimitGate(RateLimiter()), "m", loop, group(R=1))
    model.ask("a")
    model.limited.close()
    model.opened.die()

    assert [response.error is not None for response in model.got] == [True]
    assert model.driver.in_flight() == 0


def test_a_request_cancelled_while_it_waits_reaches_the_worker_as_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    first, second = Model(gate, "first", loop, group(R=1)), Model(gate, "second", loop, group(R=1))
    first.ask("a")
    second.ask("b").cancel()
    assert second.opened.told == []
    first.opened.finish()

    assert second.opened.told == [(1, 0)]
    second.opened.finish()
    assert len(second.got) == 1


def test_a_decoupled_model_is_limited_too(loop: asyncio.AbstractEventLoop) -> None:
    model = Model(RateLimitGate(RateLimiter()), "m", loop, group(R=1), DecoupledDriver)
    job = model.ask("a")
    assert job.set_paused(True)
    assert model.opened.held
    model.opened.listener.on_partial(0, 1, 0, Reply(), True, None)
    assert not model.opened.held
    model.opened.finish()

    assert [response.final for response in model.got] == [True]
    assert model.driver.in_flight() == 0


def test_an_idle_instance_that_can_run_now_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    holder = Model(gate, "holder", loop, group(R=1))
    both = Model(gate, "both", loop, f"{group()}, {group(R=1)}")
    holder.ask("a")
    both.ask("b")

    assert list(both.opened.running) == [0]
    both.ask("c")
    assert list(both.opened.running) == [0]
    holder.opened.finish()
    assert sorted(both.opened.running) == [0, 1]


def test_limited_instance_holds_its_resources_for_one_batch_though_it_has_two_seats(
    loop: asyncio.AbstractEventLoop,
) -> None:
    model = Model(RateLimitGate(RateLimiter()), "m", loop, group(R=1))
    model.opened.die()
    model.limited.on_back(0)
    for id in "ab":
        model.ask(id)

    assert model.opened.ids == ["a"]
    model.opened.finish()
    assert model.opened.ids == ["b"]


def test_a_model_that_could_never_run_is_not_admitted() -> None:
    gate = RateLimitGate(RateLimiter((RateLimitResource("R", 5),)))
    config = parse_model_config(f'name: "m" instance_group [ {group(R=10)} ]')

    before = footprint(gate)

    with pytest.raises(InvalidArgument, match='Resource count for "R" is limited to 5'):
        gate.admit(place_instances(config))
    assert footprint(gate) == before


def test_passive_instances_need_nothing_and_global_resources_have_one_stock() -> None:
    gate = RateLimitGate(RateLimiter((RateLimitResource("R", 1),)))
    text = 'name: "m" instance_group [ { count: 2 kind: KIND_CPU passive: true rate_limiter { resources [ ' \
        '{ name: "R" count: 9 } ] } }, { count: 1 kind: KIND_CPU rate_limiter { resources [ ' \
        '{ name: "R" count: 1 global: true } ] } } ]'  # fmt: skip
    limited = gate.admit(place_instances(parse_model_config(text)))

    assert [{(one.name, one.device): n for one, n in c.needs.items()} for c in limited._claimants.values()] == [
        {}, {}, {("R", None): 1},
    ]  # fmt: skip


def test_stopping_waits_for_what_is_held_back(loop: asyncio.AbstractEventLoop) -> None:
    gate = RateLimitGate(RateLimiter())
    first, second = Model(gate, "first", loop, group(R=1)), Model(gate, "second", loop, group(R=1))
    first.ask("a")
    second.ask("b")
    idle: list[str] = []
    second.driver.stop(lambda: idle.append("second"))
    first.opened.finish()
    assert not idle
    second.opened.finish()
    loop.run_until_complete(asyncio.sleep(0))

    assert idle == ["second"]
