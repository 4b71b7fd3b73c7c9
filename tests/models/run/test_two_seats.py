"""A driver over instances that take their next batch while one runs: both batches are answered, whatever happens."""

from __future__ import annotations

import time

from edge_serve.backends.base import Reply
from edge_serve.errors import Internal
from edge_serve.scheduling.core import DynamicBatching, Scheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.workers.front.frames.batch import BatchReply

from .test_driver import Scene, play, until


def seated(scheduler: Scheduler | None = None, instances: int = 1) -> Scene:
    """Return a driver of which each instance has two seats."""
    scene = Scene(scheduler or DynamicScheduler(DynamicBatching(1), instances), instances)
    scene.model.taken = 2
    scene.driver.join(scene.model)  # type: ignore[arg-type]  # what the driver uses of it
    return scene


#: how long batches run in `batching`
RUN_NS = 20_000_000


def batching() -> Scene:
    """Return a driver whose batches of one row are expected to run for RUN_NS."""
    here = seated(DynamicScheduler(DynamicBatching(4), 1))
    here.submit("first")
    _, batch_id, _ = here.model.batches[0]
    now = time.monotonic_ns()
    here.driver.on_reply(0, BatchReply(batch_id, now, now, now, now + RUN_NS, [Reply()]))
    return here


def test_instance_gets_its_next_batch_while_one_runs_and_no_third() -> None:
    async def story() -> None:
        here = seated()
        for id in "abc":
            here.submit(id)
        assert here.events == ["execute a", "execute b"]
        here.reply(0)
        assert here.events[2:] == ["execute c", "answer a"]
        for number in (1, 2):
            here.reply(number)
        assert here.answers() == [("a", ""), ("b", ""), ("c", "")]
        here.check()

    play(story)


def test_lost_worker_fails_both_batches_and_finds_the_rest_when_it_is_back() -> None:
    async def story() -> None:
        here = seated()
        for id in "abcd":
            here.submit(id)
        here.driver.on_lost({0: Internal("it died")})
        assert here.answers() == [("a", "it died"), ("b", "it died")]
        assert here.statistics.failures["BACKEND"] == 2
        here.check()

        here.driver.on_back(0)
        assert here.events[-2:] == ["execute c", "execute d"]
        for number in (2, 3):
            here.reply(number)
        here.check()

    play(story)


def test_last_reply_of_a_dead_worker_gives_no_batch_to_its_second_seat() -> None:
    async def story() -> None:
        here = batching()
        here.submit("a")
        here.submit("b")
        time.sleep(RUN_NS / 1e9)  # the seat is due, and the loop has not found out yet
        _, batch_id, _ = here.model.batches[1]
        here.driver.on_reply(0, BatchReply(batch_id, 10, 20, 30, 40, [Reply()], last=True))
        here.driver.on_lost({0: Internal("it died")})
        assert here.answers() == [("first", ""), ("a", "")]
        here.driver.on_back(0)
        assert here.events[-1] == "execute b"
        here.reply(2)
        here.check()

    play(story)


def test_cancelled_request_of_the_second_batch_is_named_by_its_batch() -> None:
    async def story() -> None:
        here = seated()
        here.submit("a")
        second = here.submit("b")
        second.cancel()
        assert here.model.cancelled == [(here.model.batches[1][1], 0)]
        for number in (0, 1):
            here.reply(number)
        here.check()

    play(story)


def test_stop_waits_for_both_batches() -> None:
    async def story() -> None:
        here = seated()
        for id in "ab":
            here.submit(id)
        idle: list[bool] = []
        here.driver.stop(lambda: idle.append(True))
        here.reply(0)
        assert here.driver.in_flight() == 1
        here.reply(1)
        await until(lambda: idle)
        here.check()

    play(story)


def test_instance_that_retires_is_free_after_both_batches_and_an_added_one_has_two_seats() -> None:
    async def story() -> None:
        here = seated()
        for id in "abcde":
            here.submit(id)
        free: list[int] = []
        here.driver.retire_instance(0, lambda: free.append(0))
        here.driver.add_instance(1)
        assert [instance for instance, _, _ in here.model.batches] == [0, 0, 1, 1]
        here.reply(0)
        assert not free
        here.reply(1)
        await until(lambda: free)
        here.reply(2)
        for number in (3, 4):
            here.reply(number)
        assert here.model.batches[4][0] == 1
        here.check()

    play(story)


def test_timer_sends_the_batch_that_waits_for_the_end_of_the_running_one() -> None:
    async def story() -> None:
        here = batching()
        for id in "abc":
            here.submit(id)
        assert here.events[-1] == "execute a"
        await until(lambda: len(here.model.batches) == 3)
        assert here.events[-1] == "execute b c"
        for number in (1, 2):
            here.reply(number)
        here.check()

    play(story)
