"""The driver of a decoupled model: which streams are held, and that each of them is let go once."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from edge_serve.backends.base import Reply
from edge_serve.clock import MonotonicClock
from edge_serve.errors import Internal
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.models.run.decoupled import DecoupledDriver
from edge_serve.models.run.driver import Driver, Job
from edge_serve.models.run.statistics import new_statistics
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.workers.front.frames.batch import BatchReply
from tests.leases import Slot
from tests.stories import played


class Model:
    """The workers' side: records its calls."""

    numbers = (0,)

    def __init__(self, timeout: float = 0.0) -> None:
        self.timeout = timeout
        self.batches: list[int] = []
        self.told: list[tuple[Any, ...]] = []

    def execute(self, instance: int, batch_id: int, requests: list[InferRequest], each: bool = False) -> None:
        self.batches.append(batch_id)

    def running_since_ns(self) -> int | None:
        return time.monotonic_ns()

    def cancel(self, instance: int, batch_id: int, position: int) -> None:
        self.told.append(("cancel", batch_id, position))

    def set_paused(self, instance: int, batch_id: int, position: int, held: bool) -> None:
        self.told.append(("hold" if held else "go on", instance, batch_id, position))


class Scene:
    """A driver with one stream that is open."""

    def __init__(self, timeout: float = 0.0, kind: type[Driver] = DecoupledDriver) -> None:
        self.responses: list[InferResponse] = []
        self.model = Model(timeout)
        loop = asyncio.get_running_loop()
        scheduler = DirectScheduler(1)
        self.driver = kind("m", "1", scheduler, new_statistics(), MonotonicClock(), loop)
        self.driver.model = self.model  # type: ignore[assignment]  # what the driver uses of it
        self.body = Slot()
        first = InferRequest("m", id="a", lease=self.body)
        self.job: Job = self.driver.submit(first, 1, None, self.responses.append)

    @property
    def batch(self) -> int:
        return self.model.batches[0]

    def respond(self, final: bool = False) -> None:
        assert isinstance(self.driver, DecoupledDriver)
        self.driver.on_partial(0, self.batch, 0, Reply(), final, None)

    def return_from_execute(self) -> None:
        self.driver.on_reply(0, BatchReply(self.batch, 10, 20, 30, 40, [Reply()], left=self.model.timeout))


def play(story: Callable[[], None]) -> None:
    async def work() -> None:
        story()

    asyncio.run(work())


def test_a_batch_runs_until_the_last_response_to_its_requests() -> None:
    def story() -> None:
        scene = Scene()
        assert scene.driver.oldest_batch_seconds() is not None
        scene.return_from_execute()
        scene.respond()
        age = scene.driver.oldest_batch_seconds()
        assert age is not None
        assert 0 < age < 10
        scene.respond(final=True)
        assert scene.driver.oldest_batch_seconds() is None

    play(story)


def test_a_stream_is_paused_and_resumed_once_each() -> None:
    def story() -> None:
        scene = Scene()
        for held in (False, True, True, False, False):
            assert scene.job.set_paused(held)
        assert scene.model.told == [("hold", 0, scene.batch, 0), ("go on", 0, scene.batch, 0)]

    play(story)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stream_that_waits_in_the_queue_is_paused_when_it_begins(resumed: bool) -> None:
    def story() -> None:
        scene = Scene()
        second: Job = scene.driver.submit(InferRequest("m", id="b"), 1, None, scene.responses.append)
        assert second.set_paused(True)
        if resumed:
            second.set_paused(False)
        assert scene.model.told == []
        scene.respond(final=True)
        scene.return_from_execute()
        assert scene.model.told == ([] if resumed else [("hold", 0, scene.model.batches[1], 0)])

    play(story)


@pytest.mark.parametrize("returned", [False, True])
def test_the_inputs_are_released_after_the_compute_times_are_reported(returned: bool) -> None:
    """Ensembles count a request when its inputs are released."""

    def story() -> None:
        scene = Scene()
        scene.job.request.compute = times = ComputeTimes()
        steps: list[Callable[[], None]] = [scene.return_from_execute, partial(scene.respond, final=True)]
        for step in steps if returned else reversed(steps):
            assert scene.body.released == 0
            step()
        assert (scene.body.released, times.infer_ns) == (1, 10)

    play(story)


def test_the_limit_of_a_stream_runs_by_the_time_of_its_worker() -> None:
    async def story() -> None:
        scene, worker_time = Scene(timeout=0.02), 100.0
        reply = BatchReply(scene.batch, 10, 20, 30, 40, [Reply()], left=0.02, time=lambda: worker_time)
        scene.driver.on_reply(0, reply)
        await asyncio.sleep(0.1)
        assert not scene.responses
        worker_time = 100.02
        await asyncio.sleep(0.1)
        assert "execution_timeout_ms (20)" in str(scene.responses[0].error)

    asyncio.run(story())


@pytest.mark.parametrize("end", ["final", "cancel"])
@pytest.mark.parametrize("returned", [False, True])
def test_a_paused_stream_is_resumed_when_it_ends(end: str, returned: bool) -> None:
    def story() -> None:
        scene = Scene()
        scene.respond()
        if returned:
            scene.return_from_execute()
        scene.job.set_paused(True)
        if end == "final":
            scene.respond(final=True)
        else:
            scene.job.cancel()
        assert ("go on", 0, scene.batch, 0) in scene.model.told
        told = len(scene.model.told)

        if end == "final":
            assert scene.job.set_paused(True)  # its client still reads
            scene.job.set_paused(False)
            assert len(scene.model.told) == told

    play(story)


def test_a_stream_that_ended_and_one_whose_worker_died_need_no_word() -> None:
    def story() -> None:
        scene = Scene()
        scene.respond(final=True)
        assert scene.model.told == []

        scene = Scene()
        scene.return_from_execute()
        scene.job.set_paused(True)
        scene.driver.on_lost({0: Internal("died")})
        assert scene.job.set_paused(False)
        assert [told[0] for told in scene.model.told] == ["hold"]
        assert scene.responses[-1].final

    play(story)


@played
async def test_the_time_in_which_a_stream_is_held_does_not_count() -> None:
    scene = Scene(timeout=0.1)
    scene.respond()
    scene.return_from_execute()
    scene.job.set_paused(True)
    await asyncio.sleep(0.2)
    assert not scene.responses[-1].final

    scene.job.set_paused(False)
    while not scene.responses[-1].final:
        await asyncio.sleep(0.01)
    error = scene.responses[-1].error
    assert error is not None
    assert "execution_timeout_ms (100)" in error.message


@pytest.mark.parametrize("paused", [False, True])
@played
async def test_the_time_of_a_stream_goes_on_from_what_execute_left(paused: bool) -> None:
    """Also if the batch waited longer than that before it was sent: for the rate limiter, or for memory."""
    scene = Scene(timeout=0.02)
    if paused:
        scene.job.set_paused(True)
    await asyncio.sleep(0.05)
    assert not scene.responses, "the channel limits the batch until it is answered"
    scene.return_from_execute()
    if paused:
        await asyncio.sleep(0.05)
        assert not scene.responses
        scene.job.set_paused(False)
    while not scene.responses:
        await asyncio.sleep(0.001)
    assert scene.responses[0].final
    assert scene.driver.in_flight() == 0


def test_an_ordinary_model_cannot_be_held() -> None:
    def story() -> None:
        assert not Scene(kind=Driver).job.set_paused(True)

    play(story)


@pytest.mark.parametrize("end", ["final", "lost"])
@played
async def test_no_clock_runs_on_for_a_stream_that_has_ended(end: str) -> None:
    scene = Scene(timeout=1000.0)
    driver = weakref.ref(scene.driver)
    if end == "final":
        scene.respond(final=True)
        scene.return_from_execute()
    else:
        scene.driver.on_lost({0: Internal("died")})
    scene.driver.fail_all(Internal("closed"))
    await asyncio.sleep(0)  # the last decision
    del scene
    gc.collect()
    assert driver() is None


@played
async def test_an_instance_that_retires_is_free_when_its_last_stream_has_ended() -> None:
    scene, free = Scene(), list[str]()
    scene.driver.retire_instance(0, lambda: free.append("free"))
    scene.return_from_execute()
    await asyncio.sleep(0.01)
    assert not free, "its sender still sends"
    scene.respond(final=True)
    await asyncio.sleep(0.01)
    assert free == ["free"]


@pytest.mark.parametrize("end", ["final", "error", "lost", "overrun"])
@played
async def test_the_memory_of_inputs_is_released_once_with_the_last_response(end: str) -> None:
    scene, inputs = Scene(0.01 if end == "overrun" else 0.0), Slot()
    assert isinstance(scene.driver, DecoupledDriver)
    assert scene.driver.on_placed(0, scene.batch, 0, inputs)
    scene.respond()
    if end == "error":
        scene.driver.on_reply(0, BatchReply(scene.batch, 10, 20, 30, 40, [Reply(error=Internal("no"))]))
    else:
        scene.return_from_execute()
        assert inputs.released == 0
        if end == "final":
            scene.respond(final=True)
        elif end == "lost":
            scene.driver.on_lost({0: Internal("it died")})
        else:
            await asyncio.sleep(0.05)
    assert (inputs.released, scene.body.released) == (1, 1)
    assert not scene.driver.on_placed(0, scene.batch, 0, inputs)  # the stream has ended


@pytest.mark.parametrize("end", ["reply", "error", "lost"])
def test_the_memory_of_inputs_is_not_released_while_execute_runs(end: str) -> None:
    def story() -> None:
        scene, inputs = Scene(), Slot()
        assert isinstance(scene.driver, DecoupledDriver)
        assert scene.driver.on_placed(0, scene.batch, 0, inputs)
        scene.respond(final=True)
        assert (inputs.released, scene.body.released) == (0, 0)
        if end == "reply":
            scene.return_from_execute()
        elif end == "error":
            scene.driver.on_reply(0, BatchReply(scene.batch, 10, 20, 30, 40, [Reply(error=Internal("no"))]))
        else:
            scene.driver.on_lost({0: Internal("it died")})
        assert (inputs.released, scene.body.released, len(scene.responses)) == (1, 1, 1)

    play(story)
