"""Models in real worker processes: batches, and what models say."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_serve.errors import NotFound, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes
from edge_serve.workers.front.workers import Hooks
from tests.stories import played
from tests.workers.harness import config, request, run, serving, values


@played
async def test_every_type_makes_the_round_trip(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        for datatype in DataType:
            for count in (1, 40_000):  # in the message; in the arena, with the room for outputs asked for
                if datatype is DataType.BYTES:
                    data: bytes = join_bytes([b"x" * (i % 7) for i in range(count)])
                else:
                    data = (np.arange(count) % 2).astype(datatype.numpy).tobytes()
                tensor = InferTensor("INPUT0", datatype, (1, count), data)
                reply = await served.ask(InferRequest("echo", inputs=[tensor]))
                (output,) = reply.replies[0].outputs
                assert (output.name, output.datatype, output.shape) == ("OUTPUT0", datatype, (1, count))
                assert bytes(output.data) == data
                if reply.lease is not None:
                    reply.lease.release()


@played
async def test_a_body_in_the_arena_is_not_copied_into_the_message(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=100_000)) as served:
        slot = served.arena.allocate(400_000)
        slot.view[:] = np.arange(100_000, dtype=np.int32).tobytes()
        tensor = InferTensor("INPUT0", DataType.INT32, (1, 100_000), slot.view, slot.offset)
        reply = await served.ask(InferRequest("echo", inputs=[tensor], lease=slot))
        slot.release()
        assert values(reply.replies[0])[-1] == 99_999
        assert reply.lease is not None
        assert reply.compute_start_ns <= reply.input_end_ns <= reply.output_start_ns <= reply.end_ns
        reply.lease.release()


@played
async def test_instances_work_beside_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path, instances=3) as served:
        started = time.monotonic()
        for instance in range(3):
            served.send(*[request(do="sleep", ms=150), request([instance] * 16)], instance=instance)
        events = [await served.listener.next() for _ in range(3)]
        assert time.monotonic() - started < 0.4
        assert sorted(instance for _, instance, _ in events) == [0, 1, 2]
        for kind, instance, reply in events:
            assert kind == "reply"
            assert values(reply.replies[1]) == [instance] * 16
        assert len(set(served.model.pids())) == 1


@played
async def test_an_instance_may_have_its_next_batch_before_it_has_finished_one(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1)) as served:
        for number in range(3):  # outputs for which each asks for room
            served.send(request(range(number, 20_000 + number), do="grow", times=2))
        for number in range(3):
            reply = await served.listener.reply()
            assert reply.batch_id == number + 1
            assert values(reply.replies[0])[:2] == [number, number + 1]
            assert reply.lease is not None
            reply.lease.release()


@played
async def test_errors_of_models_are_replies(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first, second = (await served.ask(request(do="error", text="gone"), request())).replies
        assert isinstance(first.error, NotFound)
        assert first.error.message == "gone"
        assert second.error is None
        for deed, text in (("raise_", "ValueError: asked to raise"), ("sys_exit", "SystemExit: 3")):
            replies = (await served.ask(request(do=deed), request())).replies
            wanted = f"Failed to process the request(s) for model 'echo_0', message: {text}"
            assert [reply.error and reply.error.message for reply in replies] == [wanted, wanted]
        assert served.model.restarts == 0


@played
async def test_large_outputs_without_memory_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1), budget=1 << 20) as served:
        large, small = (await served.ask(request(do="grow", times=100_000), request())).replies
        assert isinstance(large.error, Unavailable)
        assert "no tensor memory for" in large.error.message
        assert values(small) == list(range(16))


@played
async def test_expired_requests_are_not_executed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        late = request(deadline_ns=time.monotonic_ns() - 1, do="exit")
        early = request(deadline_ns=time.monotonic_ns() + 10**10)
        refused, answered = (await served.ask(late, early)).replies
        assert isinstance(refused.error, Unavailable)
        assert refused.error.message == "Request timeout expired"
        assert values(answered) == list(range(16))


@played
async def test_a_running_request_sees_that_its_client_disconnected(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for wanted in (True, False):
            batch = served.send(request(), request(do="until_cancelled", ms=20_000 if wanted else 1))
            if wanted:
                served.model.cancel(0, batch, 1)
            reply = await served.listener.reply()
            assert reply.replies[1].parameters == {"cancelled": wanted}
        served.model.cancel(0, 99, 0)


@played
async def test_decoupled_models_answer_many_times(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1, decoupled=True)) as served:
        batch = served.send(request(range(20_000), do="partials", times=3))
        for number in range(3):
            kind, instance, (batch_id, index, reply, final, lease) = await served.listener.next()
            assert (kind, instance, batch_id, index, final) == ("partial", 0, batch, 0, number == 2)
            assert reply.parameters == {"number": number}
            assert values(reply)[-1] == 19_999
            lease.release()
        assert (await served.listener.reply()).replies[0].outputs == []


@played
async def test_large_inputs_of_a_decoupled_model_for_which_there_is_no_memory_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1, decoupled=True), budget=16 << 12) as served:
        served.send(request(range(20_000), do="partials", times=1), request([1], do="partials", times=1))
        replies = (await served.listener.reply()).replies
        assert [type(reply.error) for reply in replies] == [Unavailable, Unavailable]
        served.send(request([1], do="partials", times=1))
        _, _, (_, _, reply, final, _) = await served.listener.next()
        assert (reply.error, final) == (None, True)
        await served.listener.reply()


def test_lines_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            await served.ask(request(do="log", text="grüße"))

    with caplog.at_level(logging.INFO):
        run(work())
    found = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert {
        ("WARNING", "echo: grüße by host"),
        ("ERROR", "echo: grüße by logging"),
        ("INFO", "echo: grüße by print"),
        ("INFO", "echo: grüße by descriptor"),
    } <= found


def test_a_model_that_prints_without_end_does_not_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            assert values((await served.ask(request(do="flood", bytes=5_000_000))).replies[0]) == list(range(16))

    with caplog.at_level(logging.INFO):
        run(work())
    assert len(caplog.records) < 2000
    assert any("lines dropped" in record.getMessage() for record in caplog.records)


@played
async def test_metrics_and_calls_reach_the_front_end(tmp_path: Path) -> None:
    updates: list[dict[str, object]] = []
    hooks = Hooks(metric=lambda update, worker: updates.append(update))
    async with serving(tmp_path, hooks=hooks) as served:
        await served.ask(request(do="metric"))
        assert [(update["name"], update["operation"], update["value"]) for update in updates] == [
            ("echoes", "increment", 1.0)
        ]
        refused = (await served.ask(request(do="call", model="other"))).replies[0]
        assert refused.error is not None
        assert refused.error.http_status == 501
        hooks.infer = lambda asked: asked.answer(
            InferResponse("other", "1", outputs=[replace(asked.call.inputs[0], name="OUTPUT0")],
                          parameters={"asked": asked.call.model_name})
        )  # fmt: skip
        reply = (await served.ask(request(do="call", model="other"))).replies[0]
        assert values(reply) == list(range(16))
        assert reply.parameters == {"asked": "other"}
