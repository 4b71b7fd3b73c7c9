"""The driver of stateful models: what comes together is decided on together, and nothing is forgotten for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from edge_serve.backends.base import Reply
from edge_serve.errors import Unavailable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START
from edge_serve.models.run.sequence_driver import IterativeDecoupledDriver, IterativeDriver, SequenceDriver
from edge_serve.scheduling.core import SequenceBatching
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.sequence.sequences import SequenceScheduler
from edge_serve.workers.front.frames.batch import BatchReply
from tests.models.run.test_driver import Scene, play, until

BOTH = SEQUENCE_START | SEQUENCE_END
Kind = Callable[[SequenceBatching, int], SequenceScheduler]


@pytest.fixture(params=[DirectSequences, OldestSequences])
def kind(request: pytest.FixtureRequest) -> Kind:
    scheduler: Kind = request.param
    return scheduler


def scene(kind: Kind, rows: int = 1) -> Scene:
    """One instance; a sequence that is not heard of keeps its slot for a minute."""
    batching = SequenceBatching(max_batch_size=rows, max_sequence_idle_us=60_000_000)
    return Scene(kind(batching, 1), driver=SequenceDriver)


def test_requests_that_come_together_travel_together(kind: Kind) -> None:
    async def story() -> None:
        here = scene(kind, rows=4)
        for id in "ab":
            here.submit(id, correlation_id=id, flags=BOTH)
        await until(lambda: here.model.batches)
        for id in "cd":
            here.submit(id, correlation_id=id, flags=BOTH)
        here.reply()
        assert here.events == ["execute a b", "execute c d", "answer a", "answer b"]
        here.check()

    play(story)


@pytest.mark.parametrize("limit", ["deadline_ns", "timeout_us"])
def test_the_time_of_a_request_ends_while_every_instance_works(kind: Kind, limit: str) -> None:
    async def story() -> None:
        here = scene(kind)
        here.submit("a", correlation_id=1, flags=SEQUENCE_START)
        await until(lambda: here.model.batches)
        until_when = {"timeout_us": 20_000, "deadline_ns": time.monotonic_ns() + 20_000_000}[limit]
        here.submit("b", correlation_id=2, flags=BOTH, **{limit: until_when})
        await until(lambda: here.responses)
        assert (here.responses[0].id, type(here.responses[0].error)) == ("b", Unavailable)
        here.reply()
        here.check()

    play(story)


def test_a_waiting_sequence_gets_the_slot_of_a_restarted_sequence(kind: Kind) -> None:
    async def story() -> None:
        here = scene(kind)
        here.submit("a", correlation_id=1, flags=SEQUENCE_START)
        await until(lambda: here.model.batches)
        here.reply()
        here.submit("b", correlation_id=2, flags=BOTH)
        await asyncio.sleep(0.01)  # decided: there is no slot
        here.driver.end_sequence(1)
        await until(lambda: len(here.model.batches) == 2)
        here.reply(1)
        here.check()

    play(story)


def test_a_sequence_whose_start_was_not_sent_has_to_start_again(kind: Kind) -> None:
    async def story() -> None:
        here = scene(kind)
        here.submit("start", correlation_id=1, flags=SEQUENCE_START)
        await until(lambda: here.model.batches)
        here.submit("next", correlation_id=1)
        batch_id, full = here.model.batches[0][1], Reply(error=Unavailable("no memory"))
        here.driver.on_reply(0, BatchReply(batch_id, 0, 0, 0, 0, [full], unsent=range(1)))
        here.submit("third", correlation_id=1)

        texts = dict(here.answers())
        assert texts["start"] == "no memory"
        assert "must specify the START flag" in texts["next"]
        assert "must specify the START flag" in texts["third"]
        here.submit("again", correlation_id=1, flags=SEQUENCE_START)
        await until(lambda: len(here.model.batches) == 2)
        here.reply(1)
        here.check()

    play(story)


def test_a_sequence_whose_end_was_not_sent_is_still_open(kind: Kind) -> None:
    async def story() -> None:
        here = scene(kind)
        here.submit("a", correlation_id=1, flags=SEQUENCE_START)
        await until(lambda: here.model.batches)
        here.reply()
        here.submit("end", correlation_id=1, flags=SEQUENCE_END)
        await until(lambda: len(here.model.batches) == 2)
        full = Reply(error=Unavailable("no memory"))
        here.driver.on_reply(0, BatchReply(here.model.batches[1][1], 0, 0, 0, 0, [full], unsent=range(1)))
        here.submit("again", correlation_id=1, flags=SEQUENCE_END)
        await until(lambda: len(here.model.batches) == 3)
        here.reply(2)
        assert here.answers() == [("a", ""), ("end", "no memory"), ("again", "")]
        assert not here.driver.open_sequences()
        here.check()

    play(story)


def test_each_run_of_an_iterative_request_has_waited_since_its_own_arrival(kind: Kind) -> None:
    async def story() -> None:
        batching = SequenceBatching(max_batch_size=1, max_sequence_idle_us=60_000_000, iterative=True)
        here = Scene(kind(batching, 1), driver=IterativeDriver)
        job = here.submit("a")

        async def end_run(number: int, again: bool) -> None:
            await until(lambda: len(here.model.batches) > number)
            batch_id, came = here.model.batches[number][1], job.arrival_ns
            reply = BatchReply(batch_id, came + 10, came + 20, came + 30, came + 40, [Reply(rescheduled=again)])
            here.driver.on_reply(0, reply)

        await end_run(0, True)
        await end_run(1, False)
        assert (here.statistics.queue.count, here.statistics.queue.ns) == (2, 2 * 10)
        here.check()

    play(story)


class IterativeStreams(Scene):
    """An iterative decoupled model whose batches are answered when the test says so."""

    driver: IterativeDecoupledDriver

    def __init__(
        self,
        kind: Kind,
        rows: int = 1,
        timeout: float = 0.0,
        driver: type[IterativeDriver] = IterativeDecoupledDriver,
        **more: Any,
    ) -> None:
        batching = SequenceBatching(rows, max_sequence_idle_us=60_000_000, iterative=True, **more)
        super().__init__(kind(batching, 1), driver=driver)
        self.model.timeout = timeout

    async def runs(self, number: int) -> int:
        """Wait until batch `number` is executed. Return its ID."""
        await until(lambda: len(self.model.batches) > number)
        return self.model.batches[number][1]

    def end_run(self, batch_id: int, *again: bool, left: float = 0.0) -> None:
        """The run of a batch is done; the requests for which `again` is set are to run once more."""
        replies = [Reply(rescheduled=one) for one in again]
        self.driver.on_reply(0, BatchReply(batch_id, 10, 20, 30, 40, replies, left=left))

    def finish(self, batch_id: int, count: int = 1) -> None:
        """The run of a batch is done, and each of its requests has its last response."""
        for position in range(count):
            self.driver.on_partial(0, batch_id, position, Reply(), True, None)
        self.end_run(batch_id, *[False] * count)


@pytest.mark.parametrize("when", ["while it runs", "while it is queued again", "not yet"])
def test_a_stream_that_was_paused_in_the_queue_is_resumed_in_every_run(kind: Kind, when: str) -> None:
    async def story() -> None:
        here = IterativeStreams(kind)
        here.submit("a")
        first = await here.runs(0)
        job = here.submit("b")
        assert job.set_paused(True)
        here.finish(first)
        second = await here.runs(1)
        assert here.model.paused == {(second, 0)}
        if when == "while it runs":
            job.set_paused(False)
        here.end_run(second, True)
        if when == "while it is queued again":
            job.set_paused(False)
        third = await here.runs(2)
        assert here.model.paused == ({(third, 0)} if when == "not yet" else set())
        here.finish(third)
        assert not here.model.paused
        here.check()

    play(story)


@pytest.mark.parametrize("again", [True, False])
def test_the_wait_for_the_next_run_does_not_count_as_execution(again: bool) -> None:
    """Two streams take turns. The limit of the first one begins when its run has ended, unless it is to run again."""

    async def story() -> None:
        here = IterativeStreams(OldestSequences, timeout=0.02, oldest=True, max_candidate_sequences=2)
        here.submit("a")
        first = await here.runs(0)
        here.submit("b")
        here.end_run(first, again, left=0.01)
        second = await here.runs(1)
        await asyncio.sleep(0.03)
        text = "model 'm' sent 0 responses and no final one within its execution_timeout_ms (20)"
        assert here.answers() == ([] if again else [("a", text)])
        here.finish(second)
        if again:
            third = await here.runs(2)
            here.finish(third)
        assert [one for one in here.answers() if not one[1]] == [("b", ""), ("a", "")][: 2 if again else 1]
        here.check()

    play(story)


def test_the_limit_of_a_batch_fails_only_streams_that_do_not_run_again() -> None:
    async def story() -> None:
        here = IterativeStreams(OldestSequences, 2, timeout=0.02, oldest=True, max_candidate_sequences=5)
        here.submit("before")
        before = await here.runs(0)
        for id in ("again", "silent"):
            here.submit(id)
        here.finish(before, 1)
        both = await here.runs(1)
        for id in ("c", "d"):
            here.submit(id)
        here.end_run(both, True, False, left=0.01)
        others = await here.runs(2)
        await until(lambda: len(here.responses) > 1)
        await asyncio.sleep(0.02)
        assert [id for id, _ in here.answers()] == ["before", "silent"]
        here.finish(others, 2)
        here.finish(await here.runs(3), 1)
        assert here.answers()[2:] == [("c", ""), ("d", ""), ("again", "")]
        here.check()

    play(story)


@pytest.mark.parametrize("end", ["in the old run", "in the new run", "the worker dies"])
def test_a_response_that_crosses_the_next_run_arrives(kind: Kind, end: str) -> None:
    """Until the worker starts the next run, a model's thread sends as of the run before."""

    async def story() -> None:
        here = IterativeStreams(kind)
        here.submit("a")
        first = await here.runs(0)
        here.end_run(first, True)
        second = await here.runs(1)
        here.driver.on_partial(0, first, 0, Reply(), end == "in the old run", None)
        if end == "the worker dies":
            here.driver.on_lost({0: Unavailable("lost")})
        else:
            here.finish(second)
        here.driver.on_partial(0, first, 0, Reply(), False, None)
        texts = {"in the old run": [""], "in the new run": ["", ""], "the worker dies": ["", "lost"]}[end]
        assert here.answers() == [("a", text) for text in texts]
        assert here.responses[-1].final
        assert not here.driver._moved
        assert not here.driver.in_flight()

    play(story)


@pytest.mark.parametrize("end", ["answer", "error", "the worker dies", "it dies in between", "unload"])
@pytest.mark.parametrize("final", ["in the first run", "between the runs", "in the second run"])
def test_a_request_that_has_its_last_response_runs_again_and_keeps_its_memory(kind: Kind, final: str, end: str) -> None:
    async def story() -> None:
        here = IterativeStreams(kind)
        here.submit("a")

        def finish(batch_id: int, when: str) -> None:
            if final == when:
                here.driver.on_partial(0, batch_id, 0, None, True, None)
            assert not here.slots["a"].released

        first = await here.runs(0)
        finish(first, "in the first run")
        here.end_run(first, True)
        assert here.driver.in_flight()
        finish(first, "between the runs")
        if end == "it dies in between" and final != "in the second run":
            here.driver.on_lost({0: Unavailable("lost")})
            await until(lambda: not here.driver.in_flight())
        else:
            second = await here.runs(1)
            finish(second, "in the second run")
            if end == "answer":
                here.end_run(second, False)
            elif end == "error":
                reply = Reply(error=Unavailable("no"))
                here.driver.on_reply(0, BatchReply(second, 10, 20, 30, 40, [reply]))
            elif end == "unload":
                here.driver.fail_all(Unavailable("late"))
            else:
                here.driver.on_lost({0: Unavailable("lost")})
        assert here.answers() == [("a", "")]
        here.check()
        assert not here.driver._leases

    play(story)


@pytest.mark.parametrize("driver", [IterativeDriver, IterativeDecoupledDriver])
@pytest.mark.parametrize("end", ["disconnected", "late"])
def test_the_worker_hears_of_the_end_of_a_request_that_waits_for_its_next_run(
    kind: Kind, driver: type[IterativeDriver], end: str
) -> None:
    async def story() -> None:
        here = IterativeStreams(kind, driver=driver)
        job = here.submit("a", deadline_ns=time.monotonic_ns() + 10_000_000 if end == "late" else 0)
        first = await here.runs(0)
        here.driver._scheduler._instances.lost(0)  # no instance runs it once more
        here.end_run(first, True)
        if end == "disconnected":
            job.cancel()
        await until(lambda: here.responses)
        assert here.model.cancelled == [(first, 0)]
        here.check()

    play(story)


def test_the_worker_hears_of_a_request_by_its_position_in_what_it_got() -> None:
    async def story() -> None:
        here = IterativeStreams(OldestSequences, 3, driver=IterativeDriver, oldest=True, max_candidate_sequences=4)
        here.submit("before")
        before = await here.runs(0)
        jobs = [here.submit(id) for id in "abc"]
        here.end_run(before, False)
        first = await here.runs(1)
        here.driver._scheduler._instances.lost(0)  # no instance runs them once more
        replies = [Reply(rescheduled=True), Reply(error=Unavailable("no memory")), Reply(rescheduled=True)]
        here.driver.on_reply(0, BatchReply(first, 10, 20, 30, 40, replies, unsent=[1]))
        jobs[2].cancel()
        jobs[0].cancel()
        assert here.model.cancelled == [(first, 1), (first, 0)]
        here.check()

    play(story)


def test_a_request_whose_last_response_follows_its_last_run_keeps_its_memory_until_then(kind: Kind) -> None:
    async def story() -> None:
        here = IterativeStreams(kind)
        here.submit("a")
        here.end_run(await here.runs(0), True)
        second = await here.runs(1)
        here.end_run(second, False)
        here.check()
        here.driver.on_partial(0, second, 0, Reply(), True, None)
        here.check()
        assert here.answers() == [("a", "")]

    play(story)
