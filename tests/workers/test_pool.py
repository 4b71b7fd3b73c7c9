"""Models in real worker processes: batches, deaths, restarts, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.tensors import DataType, Tensor, join_bytes
from edge_serve.workers.arena import Arena, Budget
from edge_serve.workers.pool import Hooks, Limits, Workers
from tests.workers.harness import Recorder, Served, config, request, run, serving, spec, values


async def survives(served: Served) -> None:
    """The instance comes back and answers."""
    await served.listener.back()
    assert values((await served.ask(request())).replies[0]) == list(range(16))


# ---- batches ------------------------------------------------------------------------------------------------------


def test_every_type_goes_there_and_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=-1)) as served:
            for datatype in DataType:
                for count in (1, 40_000):  # in the message; in the arena, with the room for outputs asked for
                    if datatype is DataType.BYTES:
                        data: bytes = join_bytes([b"x" * (i % 7) for i in range(count)])
                    else:
                        data = (np.arange(count) % 2).astype(datatype.numpy).tobytes()
                    tensor = Tensor("INPUT0", datatype, (1, count), data)
                    reply = await served.ask(InferRequest("echo", inputs=[tensor]))
                    (output,) = reply.replies[0].outputs
                    assert (output.name, output.datatype, output.shape) == ("OUTPUT0", datatype, (1, count))
                    assert bytes(output.data) == data
                    if reply.lease is not None:
                        reply.lease.release()

    run(work())


def test_a_body_in_the_arena_is_not_copied_into_the_message(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=100_000)) as served:
            slot = served.arena.allocate(400_000)
            slot.view[:] = np.arange(100_000, dtype=np.int32).tobytes()
            tensor = Tensor("INPUT0", DataType.INT32, (1, 100_000), slot.view, slot.offset)
            reply = await served.ask(InferRequest("echo", inputs=[tensor], lease=slot))
            slot.release()
            assert values(reply.replies[0])[-1] == 99_999
            assert reply.lease is not None
            assert reply.compute_start_ns <= reply.input_end_ns <= reply.output_start_ns <= reply.end_ns
            reply.lease.release()

    run(work())


def test_instances_work_beside_each_other(tmp_path: Path) -> None:
    async def work() -> None:
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

    run(work())


def test_errors_of_models_are_replies(tmp_path: Path) -> None:
    async def work() -> None:
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

    run(work())


def test_large_outputs_without_memory_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=-1), budget=1 << 20) as served:
            large, small = (await served.ask(request(do="grow", times=100_000), request())).replies
            assert isinstance(large.error, Unavailable)
            assert "no tensor memory for" in large.error.message
            assert values(small) == list(range(16))

    run(work())


def test_expired_requests_are_not_executed(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            late = request(deadline_ns=time.monotonic_ns() - 1, do="exit")
            early = request(deadline_ns=time.monotonic_ns() + 10**10)
            refused, answered = (await served.ask(late, early)).replies
            assert isinstance(refused.error, Unavailable)
            assert refused.error.message == "Request timeout expired"
            assert values(answered) == list(range(16))

    run(work())


def test_a_running_request_learns_that_its_client_has_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            for wanted in (True, False):
                batch = served.send(request(), request(do="until_cancelled", ms=20_000 if wanted else 1))
                if wanted:
                    served.model.cancel(batch, 1)
                reply = await served.listener.reply()
                assert reply.replies[1].parameters == {"cancelled": wanted}
            served.model.cancel(99, 0)

    run(work())


def test_decoupled_models_answer_many_times(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=-1, decoupled=True)) as served:
            batch = served.send(request(range(20_000), do="partials", times=3))
            for number in range(3):
                kind, instance, (batch_id, index, reply, final, lease) = await served.listener.next()
                assert (kind, instance, batch_id, index, final) == ("partial", 0, batch, 0, number == 2)
                assert reply.parameters == {"number": number}
                assert values(reply)[-1] == 19_999
                lease.release()
            assert (await served.listener.reply()).replies[0].outputs == []

    run(work())


# ---- what models say ----------------------------------------------------------------------------------------------


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


def test_metrics_and_calls_reach_the_front_end(tmp_path: Path) -> None:
    updates: list[dict[str, object]] = []
    hooks = Hooks(metric=updates.append)

    async def work() -> None:
        async with serving(tmp_path, hooks=hooks) as served:
            await served.ask(request(do="metric"))
            assert [(update["name"], update["operation"], update["value"]) for update in updates] == [
                ("echoes", "increment", 1.0)
            ]
            refused = (await served.ask(request(do="call", model="other"))).replies[0]
            assert refused.error is not None
            assert refused.error.http_status == 501
            hooks.call = lambda question, tensors, answer, refuse: answer(
                {"parameters": {"asked": question["model_name"]}},
                [Tensor("OUTPUT0", t.datatype, t.shape, t.data) for t in tensors[:1]],
            )
            reply = (await served.ask(request(do="call", model="other"))).replies[0]
            assert values(reply) == list(range(16))
            assert reply.parameters == {"asked": "other"}

    run(work())


# ---- deaths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "reason"), [("exit", "ended with exit status 7"), ("segfault", "was ended by SIGSEGV")]
)
def test_a_dead_worker_fails_its_batch_and_comes_back(tmp_path: Path, deed: str, reason: str) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            first = served.model.pids()
            served.send(request(), request(do=deed))
            error = await served.listener.lost()
            assert error.message.startswith(f"Stub process 'echo_0' is not healthy. Its worker {reason}")
            await survives(served)
            assert served.model.pids() != first
            assert served.model.restarts == 1
            assert await served.model.is_ready(5)

    run(work())


def test_kill_9_in_the_middle_of_a_batch_frees_its_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(dims=-1), instances=2) as served:
            served.send(request(range(100_000), do="sleep", ms=20_000), instance=1)
            await asyncio.sleep(0.05)
            assert served.budget.used > 0
            os.kill(served.model.pids()[0], signal.SIGKILL)
            assert sorted([(await served.listener.next())[:2] for _ in range(2)]) == [("lost", 0), ("lost", 1)]
            assert served.budget.used == 0
            assert sorted([(await served.listener.next())[:2] for _ in range(2)]) == [("back", 0), ("back", 1)]

    run(work())


def test_execute_while_the_worker_is_away_is_lost(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            served.send(request(do="exit"))
            await served.listener.lost()
            served.send(request())
            assert served.listener.idle(), "never before execute has returned"
            assert "has no worker now" in (await served.listener.lost()).message
            assert not await served.model.is_ready(5)
            await survives(served)

    run(work())


def test_garbage_from_users_code_ends_only_its_worker(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            served.send(request(do="garbage"))
            assert "broke the protocol" in (await served.listener.lost()).message
            await survives(served)

    run(work())


def test_a_stuck_interpreter_is_noticed(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, limits=Limits(silence=0.6)) as served:
            served.send(request(do="hold", ms=20_000))
            assert "its interpreter is stuck" in (await served.listener.lost()).message
            await survives(served)

    run(work())


def test_a_slow_model_is_not_stuck(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, limits=Limits(silence=0.3)) as served:
            assert values((await served.ask(request(do="sleep", ms=800))).replies[0]) == list(range(16))

    run(work())


def test_execution_timeout_ends_the_batch(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(execution_timeout_ms="200")) as served:
            await served.ask(request(do="sleep", ms=20))
            served.send(request(do="sleep", ms=20_000))
            assert "longer than the model's execution_timeout_ms (200)" in (await served.listener.lost()).message
            await survives(served)
            await asyncio.sleep(0.3)
            assert served.listener.idle(), "the timer of an answered batch is gone"

    run(work())


def test_many_crashes_wait_and_a_reopen_that_fails_is_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def work() -> None:
        async with serving(tmp_path, config(on_open="fail_when_marked")) as served:
            served.send(request(do="exit"))
            await served.listener.lost()
            await served.listener.back()
            mark.touch()
            served.send(request(do="exit"))
            await served.listener.lost()
            await asyncio.sleep(0.5)
            assert served.listener.idle()
            assert not await served.model.is_ready(5)
            mark.unlink()
            await survives(served)
            served.send(request(do="exit"))
            await served.listener.lost()
            started = time.monotonic()
            await survives(served)
            assert time.monotonic() - started > 0.25, "the third crash waits"

    run(work())


def test_a_crash_at_reopening_counts_as_crash(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def work() -> None:
        async with serving(tmp_path, config(on_open="exit_when_marked")) as served:
            mark.touch()
            served.send(request(do="exit"))
            await served.listener.lost()
            while served.model.restarts < 3:
                await asyncio.sleep(0.01)
            mark.unlink()
            await survives(served)

    run(work())


# ---- loading and closing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "cls", "text"),
    [
        ("fail", InvalidArgument, "asked to fail"),
        ("raise", Internal, "ValueError: asked to raise"),
        ("exit", Internal, "worker echo ended with exit status 9 while it loaded model 'echo'"),
        ("sleep", Internal, "model 'echo' did not load within 0.5 s"),
    ],
)
def test_a_failed_load_says_why_and_leaves_nothing(
    tmp_path: Path, deed: str, cls: type[EdgeServeError], text: str
) -> None:
    async def work() -> None:
        workers = Workers(Limits(load=0.5 if deed == "sleep" else 20))
        arena = Arena("echo", Budget(1 << 20))
        for phase in ("on_describe", "on_open") if deed == "fail" else ("on_open",):
            made = spec(tmp_path, config(**{phase: deed}))  # type: ignore[arg-type]  # only parameters are named
            describing = workers.describe(made, "echo")
            opening = workers.open(made, "echo", [InstanceSpec("echo_0")], Recorder(), arena)
            unused, work = (opening, describing) if phase == "on_describe" else (describing, opening)
            unused.close()
            with pytest.raises(cls) as caught:
                await work
            assert text in str(caught.value)
            assert workers.workers() == 0
        arena.close()
        assert not psutil.Process().children()

    run(work())


def test_a_model_opens_in_the_worker_that_described_it(tmp_path: Path) -> None:
    async def work() -> None:
        workers = Workers()
        arena = Arena("echo", Budget(1 << 20))
        listener = Recorder()
        completed = await workers.describe(spec(tmp_path, {"name": "echo"}), "echo", own_worker=True)
        assert [entry["name"] for entry in completed["input"]] == ["INPUT0"]
        (described,) = psutil.Process().children()
        model = await workers.open(
            spec(tmp_path, completed), "echo", [InstanceSpec("e")], listener, arena, own_worker=True
        )
        assert model.pids() == [described.pid]
        await model.close()
        await workers.describe(spec(tmp_path, {"name": "echo"}), "echo")
        await workers.forget(spec(tmp_path, {}))
        assert workers.workers() == 0
        arena.close()

    run(work())


def test_models_of_a_backend_share_a_worker_unless_told_otherwise(tmp_path: Path) -> None:
    async def work() -> None:
        workers = Workers()
        arenas = [Arena("echo", Budget(1 << 20)) for _ in range(3)]
        listeners = [Recorder() for _ in range(3)]
        first, second, alone = [
            await workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("e")], listener, arena, own_worker=own)
            for listener, arena, own in zip(listeners, arenas, (False, False, True), strict=True)
        ]
        assert first.pids() == second.pids() != alone.pids()
        assert 1 << 20 < first.memory_bytes() < alone.memory_bytes()
        first.execute(0, 1, [request(do="exit")])
        for listener in listeners[:2]:
            await listener.lost()
            await listener.back()
        assert listeners[2].idle()
        await first.close()
        second.execute(0, 2, [request()])
        await listeners[1].reply()
        for model in (second, alone):
            await model.close()
        assert workers.workers() == 0
        for arena in arenas:
            arena.close()

    run(work())


def test_readiness_is_the_models_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            assert await served.model.is_ready(5)
            (tmp_path / "not_ready").touch()
            assert not await served.model.is_ready(5)

    run(work())


@pytest.mark.parametrize("busy", [False, True])
def test_a_model_that_does_not_close_is_killed(tmp_path: Path, busy: bool) -> None:
    async def work() -> None:
        async with serving(tmp_path, config(on_close="" if busy else "sleep"), limits=Limits(close=0.3)) as served:
            if busy:
                served.send(request(do="sleep", ms=20_000))
            (pid,) = served.model.pids()
            await served.model.close()
            assert not psutil.pid_exists(pid)
            assert served.listener.idle()
            served.model._homes.clear()  # the harness closes again

    run(work())


def test_stop_ends_everything(tmp_path: Path) -> None:
    async def work() -> None:
        workers = Workers(Limits(close=1))
        arena = Arena("echo", Budget(1 << 20))
        model = await workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("e")], Recorder(), arena)
        await workers.describe(spec(tmp_path, config()), "echo", own_worker=True)
        assert len(model.pids()) == 1
        await workers.stop()
        assert not psutil.Process().children()
        arena.close()

    run(work())


def test_nothing_leaks_over_many_models(tmp_path: Path) -> None:
    """In the front end and in the worker, which stays because one model does."""

    async def work() -> None:
        async with serving(tmp_path) as served:
            worker = psutil.Process(served.model.pids()[0])

            async def cycle(count: int) -> None:
                for _ in range(count):
                    arena = Arena("other", served.budget, 1 << 20)
                    listener = Recorder()
                    made = spec(tmp_path, config())
                    model = await served.workers.open(made, "echo", [InstanceSpec("e")], listener, arena)
                    model.execute(0, 1, [request(range(20_000))])
                    reply = await listener.reply()
                    assert reply.lease is not None
                    reply.lease.release()
                    await model.close()
                    arena.close()

            def held() -> tuple[int, int, int]:
                gc.collect()
                return len(os.listdir("/proc/self/fd")), worker.num_fds(), worker.num_threads()

            await cycle(5)
            before, memory = held(), worker.memory_info().rss
            await cycle(100)
            assert held() == before
            assert worker.memory_info().rss - memory < 8 << 20

    run(work())


def test_the_loop_is_never_blocked_for_long(tmp_path: Path) -> None:
    async def work() -> None:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        watching = asyncio.create_task(watch())
        async with serving(tmp_path) as served:
            served.send(request(do="exit"))
            await served.listener.lost()
            await survives(served)
        watching.cancel()
        assert longest < 0.005

    run(work())
