"""The driver: what it hands to the worker, whom it answers, and that memory is given back once, whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from edge_serve.backends.base import Reply
from edge_serve.clock import MonotonicClock
from edge_serve.errors import Cancelled, Internal, InvalidArgument, Unavailable
from edge_serve.messages.infer import SEQUENCE_START, InferRequest, InferResponse
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.models.run import driver as driving
from edge_serve.models.run import outage as absence
from edge_serve.models.run.driver import Driver, Job
from edge_serve.models.run.statistics import new_statistics
from edge_serve.scheduling.core import Decision, DynamicBatching, QueuePolicy, Scheduler, SequenceBatching
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.ordering import ResponseOrder
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.start_delay import DelayedDynamic
from edge_serve.workers.front.frames.batch import BatchReply
from tests.leases import Slot

PATIENCE = 10.0


class Model:
    """The workers' side: remembers what it is given."""

    def __init__(self, scene: Scene, instances: int) -> None:
        self.numbers = range(instances)
        self.taken = 1
        self.timeout = 0.0
        self.batches: list[tuple[int, int, list[InferRequest]]] = []
        self.cancelled: list[tuple[int, int]] = []
        #: paused streams: batch and position
        self.paused: set[tuple[int, int]] = set()
        self._scene = scene

    def execute(self, instance: int, batch_id: int, requests: list[InferRequest], each: bool = False) -> None:
        self.batches.append((instance, batch_id, requests))
        self._scene.events.append("execute " + " ".join(request.id for request in requests))

    def running_since_ns(self) -> int | None:
        return time.monotonic_ns() - 12_000_000_000

    def seats(self, instance: int) -> int:
        return self.taken

    def cancel(self, instance: int, batch_id: int, position: int) -> None:
        self.cancelled.append((batch_id, position))

    def set_paused(self, instance: int, batch_id: int, position: int, paused: bool) -> None:
        (self.paused.add if paused else self.paused.discard)((batch_id, position))


class Scene:
    """A driver, its model, and the responses in the order in which they came."""

    def __init__(
        self, scheduler: Scheduler, instances: int = 1, *, ordered: bool = False, driver: type[Driver] = Driver
    ) -> None:
        self.events: list[str] = []
        self.responses: list[InferResponse] = []
        self.statistics = new_statistics()
        order: ResponseOrder[Any] | None = ResponseOrder() if ordered else None
        loop = asyncio.get_running_loop()
        self.driver = driver("m", "1", scheduler, self.statistics, MonotonicClock(), loop, order)
        self.model = Model(self, instances)
        self.driver.model = self.model  # type: ignore[assignment]  # what the driver uses of it
        self.slots: dict[str, Slot] = {}

    def submit(self, id: str, **more: Any) -> Job:
        slot = self.slots[id] = Slot()
        return self.driver.submit(InferRequest("m", id=id, lease=slot, **more), 1, None, self._on_response)

    def _on_response(self, response: InferResponse) -> None:
        self.responses.append(response)
        self.events.append(f"answer {response.id}")

    def reply(self, number: int = 0, lease: Slot | None = None, *, errors: dict[str, Reply] | None = None) -> None:
        """Batch `number` of those that were executed is done."""
        instance, batch_id, requests = self.model.batches[number]
        replies = [
            (errors or {}).get(request.id) or Reply([InferTensor("Y", DataType.INT8, (1,), b"\1")])
            for request in requests
        ]
        self.driver.on_reply(instance, BatchReply(batch_id, 10, 20, 30, 40, replies, lease))

    def answers(self) -> list[tuple[str, str]]:
        """(id, error) of each response."""
        return [(one.id, one.error.message if one.error else "") for one in self.responses]

    def check(self) -> None:
        """Each request that was answered has given its body back once, and others have not."""
        answered = [one.id for one in self.responses]
        assert len(set(answered)) == len(answered), "answered twice"
        assert {id: slot.released for id, slot in self.slots.items()} == {id: int(id in answered) for id in self.slots}
        assert self.driver.in_flight() == len(self.slots) - len(answered)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(story(), PATIENCE)

    asyncio.run(limited())


async def until(true: Callable[[], Any]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def batcher(rows: int = 4, **settings: Any) -> DynamicScheduler:
    return DynamicScheduler(DynamicBatching(rows, **settings), 1)


def test_the_age_of_the_oldest_batch_is_that_of_one_that_runs() -> None:
    async def story() -> None:
        scene = Scene(batcher(1))
        assert scene.driver.oldest_batch_seconds() is None
        scene.submit("a")
        await until(lambda: scene.model.batches)
        assert scene.driver.oldest_batch_seconds() == pytest.approx(12, abs=5)
        scene.reply()
        assert scene.driver.oldest_batch_seconds() is None

    play(story)


def test_the_last_reply_of_a_dead_worker_brings_it_no_further_batch() -> None:
    async def story() -> None:
        scene = Scene(batcher(1))
        scene.submit("a")
        scene.submit("b")
        instance, batch_id, _ = scene.model.batches[0]
        reply = BatchReply(batch_id, 10, 20, 30, 40, [Reply([InferTensor("Y", DataType.INT8, (1,), b"\1")])], last=True)
        scene.driver.on_reply(instance, reply)
        scene.driver.on_lost({instance: Internal("dead")})
        assert len(scene.model.batches) == 1
        scene.driver.on_back(instance)
        await until(lambda: len(scene.model.batches) == 2)
        scene.reply(1)
        assert scene.answers() == [("a", ""), ("b", "")]
        scene.check()

    play(story)


def test_a_request_runs_at_once_and_its_answer_has_the_outputs_and_their_memory() -> None:
    async def story() -> None:
        here = Scene(DirectScheduler(1))
        here.submit("a")
        assert here.driver.in_flight() == 1
        here.check()
        outputs = Slot()
        here.reply(lease=outputs)

        (response,) = here.responses
        assert (response.model_name, response.model_version, response.id, response.final) == ("m", "1", "a", True)
        assert response.lease is outputs
        assert [tensor.name for tensor in response.outputs] == ["Y"]
        assert (here.statistics.success.count, here.statistics.execution_count, here.statistics.pending) == (1, 1, 0)
        assert outputs.released == 0, "the door gives it back"
        here.check()

    play(story)


def test_short_executions_that_come_together_while_the_instance_is_busy_travel_together() -> None:
    async def story() -> None:
        scheduler = DirectScheduler(1)
        for _ in range(100):
            scheduler.pace(10_000)
        here = Scene(scheduler)
        for id in "abc":
            here.submit(id)
        assert here.events == ["execute a"], "the others have time"
        await until(lambda: len(here.model.batches) == 2)
        assert here.events == ["execute a", "execute b c"]

        for number in range(2):
            here.reply(number)
        assert here.events[2:] == ["answer a", "answer b", "answer c"]
        here.check()

    play(story)


def test_the_instance_gets_its_next_batch_before_the_answers_are_given() -> None:
    async def story() -> None:
        here = Scene(batcher())
        for id in "abc":
            here.submit(id)
        here.reply()

        assert here.events == ["execute a", "execute b c", "answer a"]

    play(story)


def test_a_queued_request_is_cancelled_at_once() -> None:
    async def story() -> None:
        here = Scene(batcher())
        here.submit("a")
        here.submit("b").cancel()

        assert isinstance(here.responses[0].error, Cancelled)
        assert here.responses[0].id == "b"
        assert here.statistics.failures["CANCELED"] == 1
        here.check()
        here.reply()
        assert len(here.model.batches) == 1
        here.check()

    play(story)


def test_each_request_that_is_refused_with_its_cancelled_sequence_counts_as_cancelled() -> None:
    """As in Triton 2.51, where requests without START are not counted."""

    async def story() -> None:
        here = Scene(DirectSequences(SequenceBatching(1, 1_000_000), 1))
        here.submit("a", correlation_id=7, flags=SEQUENCE_START)
        here.submit("b", correlation_id=7).cancel()
        here.submit("c", correlation_id=7)
        here.submit("d", correlation_id=8)

        assert [(one.id, type(one.error)) for one in here.responses] == [
            ("b", Cancelled),
            ("c", Cancelled),
            ("d", InvalidArgument),
        ]
        assert (here.statistics.failures["CANCELED"], here.statistics.fail.count) == (2, 2)
        here.check()

    play(story)


def test_the_worker_learns_of_a_cancelled_request_and_its_reply_answers_it() -> None:
    async def story() -> None:
        here = Scene(batcher())
        here.submit("a")
        here.submit("b")
        job = here.submit("c")
        here.reply()
        job.cancel()
        (_, batch_id, _) = here.model.batches[1]

        assert here.model.cancelled == [(batch_id, 1)]
        here.check()
        here.reply(1)
        here.check()
        job.cancel()
        assert len(here.model.cancelled) == 1, "it is answered"

    play(story)


def test_an_error_of_one_request_leaves_the_others_of_its_batch_alone() -> None:
    async def story() -> None:
        here = Scene(batcher())
        for id in "abc":
            here.submit(id)
        here.reply()
        here.reply(1, errors={"b": Reply(error=Internal("no"))})

        assert here.answers() == [("a", ""), ("b", "no"), ("c", "")]
        assert (here.statistics.success.count, here.statistics.fail.count) == (2, 1)
        here.check()

    play(story)


def test_a_request_answered_with_an_error_counts_as_executed() -> None:
    async def story() -> None:
        here = Scene(DirectScheduler(1))
        here.submit("a")
        here.reply(errors={"a": Reply(error=Internal("mine"), answered=True)})

        assert here.answers() == [("a", "mine")]
        assert (here.statistics.success.count, here.statistics.fail.count) == (1, 0)

    play(story)


def test_a_full_queue_refuses_before_submit_returns() -> None:
    async def story() -> None:
        here = Scene(batcher(default_policy=QueuePolicy(max_queue_size=1)))
        for id in "ab":
            here.submit(id)
        here.submit("c").cancel()

        assert [id for id, _ in here.answers()] == ["c"]
        assert isinstance(here.responses[0].error, Unavailable)
        assert (here.statistics.fail.count, here.statistics.pending) == (0, 1)  # as in Triton, it was not accepted
        here.check()

    play(story)


def test_a_delayed_batch_is_sent_when_its_time_has_come() -> None:
    async def story() -> None:
        here = Scene(batcher(preferred_batch_sizes=(4,), max_queue_delay_us=100_000))
        here.submit("a")
        here.submit("b")
        assert here.model.batches == []
        await until(lambda: here.model.batches)

        assert here.events == ["execute a b"]

    play(story)


def test_answers_in_the_order_of_arrival_where_that_is_asked_for() -> None:
    async def story() -> None:
        here = Scene(DynamicScheduler(DynamicBatching(1), 3), 3, ordered=True)
        for id in "abc":
            here.submit(id)
        here.reply(2)
        here.reply(1, errors={"b": Reply(error=Internal("no"))})
        assert here.responses == []
        here.reply(0)

        assert [id for id, _ in here.answers()] == ["a", "b", "c"]
        here.check()

    play(story)


def test_a_refusal_waits_for_no_earlier_answer() -> None:
    """With `preserve_ordering`, too: a place in the order is taken by a batch (Triton's DelegateResponse)."""

    async def story() -> None:
        batching = DynamicBatching(1, default_policy=QueuePolicy(max_queue_size=1))
        here = Scene(DynamicScheduler(batching, 1), ordered=True)
        here.submit("a")
        second = here.submit("b")
        here.submit("c")
        assert [id for id, _ in here.answers()] == ["c"]
        here.submit("d")
        second.cancel()
        assert [id for id, _ in here.answers()] == ["c", "d", "b"]
        here.submit("e")
        here.reply(0)
        here.reply(1)
        assert [id for id, _ in here.answers()] == ["c", "d", "b", "a", "e"]
        here.check()

    play(story)


def test_a_lost_worker_fails_what_it_had_and_nothing_else() -> None:
    async def story() -> None:
        here = Scene(DynamicScheduler(DynamicBatching(1), 2), 2)
        for id in "abc":
            here.submit(id)
        instance, _, (request,) = here.model.batches[0]
        here.driver.on_lost({instance: Internal("it died")})

        assert here.answers() == [(request.id, "it died")]
        assert here.statistics.failures["BACKEND"] == 1
        assert len(here.model.batches) == 2, "the lost instance gets nothing"
        here.driver.on_back(instance)
        assert here.model.batches[2][0] == instance
        for number in (1, 2):
            here.reply(number)
        here.check()

    play(story)


@pytest.mark.parametrize("at_once", [True, False])
def test_requests_that_wait_behind_a_lost_instance_do_not_fail_with_the_others_of_its_worker(at_once: bool) -> None:
    async def story() -> None:
        scheduler = DirectScheduler(3)
        for _ in range(100):
            scheduler.pace(10_000)  # so short that one instance takes all
        here = Scene(scheduler, 3)
        for id in "abcdef":
            here.submit(id)
        sent = here.model.batches[-1][0]
        died = Internal("it died")
        for lost in [(0, 1, 2)] if at_once else [(0,), (1,), (2,)]:
            here.driver.on_lost(dict.fromkeys(lost, died))
        await asyncio.sleep(0.01)
        assert here.answers() == [("a", "it died")], "the others were only queued"
        here.driver.on_back(sent)
        while here.driver.in_flight():
            here.reply(len(here.model.batches) - 1)
            await asyncio.sleep(0)
        assert here.answers()[1:] == [(id, "") for id in "bcdef"]
        here.check()

    play(story)


def test_a_client_that_cancels_when_its_batch_fails_sends_no_request_to_a_lost_instance() -> None:
    async def story() -> None:
        here = Scene(DirectScheduler(2), 2)
        jobs: list[Job] = []

        def cancel_third(response: InferResponse) -> None:
            here._on_response(response)
            jobs[2].cancel()

        for id in "abcd":
            jobs.append(here.driver.submit(InferRequest("m", id=id), 1, None, cancel_third))
        here.driver.on_lost(dict.fromkeys((0, 1), Internal("it died")))
        assert len(here.model.batches) == 2
        assert [id for id, _ in here.answers()] == ["a", "c", "b"]
        here.driver.on_back(0)
        assert here.events[-1] == "execute d"

    play(story)


def test_requests_wait_for_a_worker_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "OUTAGE_SECONDS", 0.005)

    async def story() -> None:
        here = Scene(batcher())
        here.driver.on_lost({0: Internal("it died")})
        here.submit("a")
        assert here.responses == []
        await until(lambda: here.responses)
        here.submit("b")

        assert [type(one.error) for one in here.responses] == [Unavailable, Unavailable]
        assert "has had no worker for 0.005 s" in here.answers()[0][1]
        assert here.statistics.pending == 0
        here.check()
        here.driver.on_back(0)
        here.submit("c")
        here.reply()
        assert here.answers()[2:] == [("c", "")]

    play(story)


@pytest.mark.parametrize("make", [
    lambda: DirectScheduler(2, {1}),
    lambda: DirectSequences(SequenceBatching(1), 2, {1}),
])  # fmt: skip
def test_requests_do_not_wait_for_a_passive_instance(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Scheduler]
) -> None:
    monkeypatch.setattr(absence, "OUTAGE_SECONDS", 0.005)

    async def story() -> None:
        here = Scene(make(), 2)
        here.driver.on_lost({1: Internal("it died")})
        await asyncio.sleep(0.01)
        here.submit("a", correlation_id=1, flags=SEQUENCE_START)
        here.reply()
        assert here.answers() == [("a", "")], "the other instance serves"
        here.driver.on_back(1)
        here.driver.on_lost({0: Internal("it died")})
        here.submit("b", correlation_id=2, flags=SEQUENCE_START)
        await until(lambda: len(here.responses) == 2)
        assert "has had no worker" in here.answers()[1][1]
        here.check()

    play(story)


def test_a_worker_that_is_back_in_time_finds_what_waited() -> None:
    async def story() -> None:
        here = Scene(batcher())
        here.driver.on_lost({0: Internal("it died")})
        here.submit("a")
        here.driver.on_back(0)
        assert here.events == ["execute a"]
        here.reply()
        here.submit("b")
        here.reply(1)

        assert here.answers() == [("a", ""), ("b", "")]

    play(story)


def test_stop_answers_what_was_accepted_and_then_says_so_once() -> None:
    async def story() -> None:
        here, idle = Scene(batcher()), []
        here.submit("a")
        here.submit("b")
        here.driver.stop(lambda: idle.append(True))
        here.submit("c")
        assert here.answers()[0][0] == "c"
        assert "Server is stopping" in here.answers()[0][1]
        here.reply()
        await asyncio.sleep(0)
        assert idle == []
        here.reply(1)
        await until(lambda: idle)

        here.check()
        here.submit("d")
        await asyncio.sleep(0)
        assert idle == [True]

    play(story)


def test_an_idle_driver_is_idle_at_once() -> None:
    async def story() -> None:
        here, idle = Scene(batcher()), []
        here.driver.stop(lambda: idle.append(True))
        assert idle == [], "the caller goes on first"
        await until(lambda: idle)

    play(story)


def test_giving_up_answers_everything() -> None:
    async def story() -> None:
        here = Scene(batcher())
        for id in "abc":
            here.submit(id)
        here.driver.fail_all(Unavailable("swapped"))

        assert sorted(here.answers()) == [("a", "swapped"), ("b", "swapped"), ("c", "swapped")]
        here.check()

    play(story)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_callback_that_fails_leaves_the_rest_of_its_batch_answered(
    ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        here = Scene(batcher(2), ordered=ordered)

        def fail(response: InferResponse) -> None:
            raise OSError("no descriptors")

        here.submit("before")
        here.driver.submit(InferRequest("m", id="a"), 1, None, fail)
        here.submit("b")
        here.reply()
        here.reply(1, Slot())
        assert here.answers() == [("before", ""), ("b", "")]
        assert here.driver.in_flight() == 0
        assert here.statistics.success.count == 3

    play(story)
    assert "no descriptors" in caplog.text


def test_a_shared_slot_is_released_with_its_last_holder_however_often_one_releases() -> None:
    async def story() -> None:
        here = Scene(batcher(2))
        for id in ("before", "a", "b"):
            here.submit(id)
        here.reply()
        outputs = Slot()
        here.reply(1, outputs)
        first, second = (one.lease for one in here.responses[1:])
        assert first is not None
        assert second is not None
        first.release()
        first.release()
        assert outputs.released == 0, "the other answer is still in it"
        second.release()
        assert outputs.released == 1

    play(story)


@pytest.mark.parametrize("scheduler", [lambda: DirectScheduler(2), lambda: DynamicScheduler(DynamicBatching(1), 2)])
def test_an_instance_that_retires_finishes_its_batch_and_the_others_take_the_rest(
    scheduler: Callable[[], Scheduler],
) -> None:
    async def story() -> None:
        here = Scene(scheduler(), 2)
        for id in "abc":
            here.submit(id)
        first = here.model.batches[0][0]
        free: list[int] = []
        here.driver.retire_instance(first, lambda: free.append(first))
        here.reply()
        await until(lambda: free)
        here.driver.add_instance(2)

        assert {instance for instance, _, _ in here.model.batches[1:]} == {1 - first, 2}
        for number in range(1, len(here.model.batches)):
            here.reply(number)
        assert sorted(here.answers()) == [("a", ""), ("b", ""), ("c", "")]
        here.check()

    play(story)


def test_an_instance_that_retires_is_free_when_its_worker_dies_and_when_the_model_stops() -> None:
    async def story() -> None:
        for end in ("died", "stopped"):
            here = Scene(DirectScheduler(2), 2)
            here.submit("a")
            instance = here.model.batches[0][0]
            free: list[int] = []
            here.driver.retire_instance(instance, partial(free.append, 1))
            here.driver.stop(lambda: None)
            if end == "died":
                here.driver.on_lost({instance: Internal(end)})
            else:
                here.reply()
            await until(partial(len, free))
            assert free == [1]

    play(story)


def test_requests_fail_after_a_limit_if_the_last_instance_with_a_worker_retires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absence, "OUTAGE_SECONDS", 0.01)

    async def story() -> None:
        here = Scene(DirectScheduler(2), 2)
        here.driver.on_lost({0: Internal("died")})
        here.driver.retire_instance(1, lambda: None)
        here.submit("a")
        await until(lambda: here.responses)
        assert "has had no worker" in here.answers()[0][1]

    play(story)


def test_requests_that_a_delayed_scheduler_waits_for_are_no_stall() -> None:
    async def story() -> None:
        scene = Scene(DelayedDynamic(DynamicBatching(4), 1, requests=2))
        scene.submit("a")
        assert scene.driver.find_stall() is None
        scene.submit("b")
        assert scene.events == ["execute a b"]

    play(story)


def test_a_decision_that_fails_at_its_time_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other event follows: without a new timer the request would wait for ever."""
    monkeypatch.setattr(driving, "RETRY_NS", 1_000_000)

    async def story() -> None:
        scheduler = batcher(max_queue_delay_us=1000)
        here = Scene(scheduler)
        here.submit("a")
        decide = scheduler.next

        def fail(now_ns: int) -> Decision:
            monkeypatch.setattr(scheduler, "next", decide)
            raise KeyError(now_ns)

        monkeypatch.setattr(scheduler, "next", fail)
        await until(lambda: here.model.batches)
        here.reply()
        here.check()

    play(story)
