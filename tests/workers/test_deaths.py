"""Worker processes that die, hang or lie: what becomes of their batches, and how they come back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.workers.front.workers import ProcessLimits
from edge_serve.workers.memory.arena import Arena, Budget
from tests.stories import played
from tests.workers.harness import Recorder, config, request, serving, spec, survives, values

pytestmark = pytest.mark.slow  # workers that die again and again


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("exit", "ended with exit status 7"),
        ("segfault", r"was ended by SIGSEGV in segfault, /\S+/backend\.py line \d+"),
    ],
)
@played
async def test_a_dead_worker_fails_its_batch_and_comes_back(tmp_path: Path, deed: str, reason: str) -> None:
    async with serving(tmp_path) as served:
        first = served.model.pids()
        served.send(request(), request(do=deed))
        error = await served.listener.lost()
        assert re.fullmatch(f"the worker of 'echo_0' {reason}; it is being restarted", error.message)
        await survives(served)
        assert served.model.pids() != first
        assert served.model.restarts == 1
        assert not await served.model.refusal(5)


@played
async def test_kill_9_in_the_middle_of_a_batch_frees_its_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1), instances=2) as served:
        served.send(request(range(100_000), do="sleep", ms=20_000), instance=1)
        await asyncio.sleep(0.05)
        assert served.budget.used > 0
        os.kill(served.model.pids()[0], signal.SIGKILL)
        assert sorted([(await served.listener.next())[:2] for _ in range(2)]) == [("lost", 0), ("lost", 1)]
        assert served.budget.used == 0
        assert sorted([(await served.listener.next())[:2] for _ in range(2)]) == [("back", 0), ("back", 1)]


@played
async def test_execute_while_the_worker_is_away_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.send(request(do="exit"))
        await served.listener.lost()
        served.send(request())
        assert served.listener.idle(), "never before execute has returned"
        assert "has no worker now" in (await served.listener.lost()).message
        assert await served.model.refusal(5)
        await survives(served)


@played
async def test_garbage_from_users_code_ends_only_its_worker(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.send(request(do="garbage"))
        assert "broke the protocol" in (await served.listener.lost()).message
        await survives(served)


@played
async def test_a_stuck_interpreter_is_noticed_though_it_is_asked_how_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=ProcessLimits(silence=0.6)) as served:

        async def ask() -> None:
            while True:
                await served.model.refusal(0.1)

        asking = asyncio.create_task(ask())
        served.send(request(do="hold", ms=20_000))
        assert "its interpreter is stuck" in (await served.listener.lost()).message
        asking.cancel()
        await survives(served)


@played
async def test_a_slow_model_is_not_stuck(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=ProcessLimits(silence=0.3)) as served:
        assert values((await served.ask(request(do="sleep", ms=800))).replies[0]) == list(range(16))


@played
async def test_execution_timeout_ends_the_batch(tmp_path: Path) -> None:
    async with serving(tmp_path, config(execution_timeout_ms="200")) as served:
        await served.ask(request(do="sleep", ms=20))
        served.send(request(do="sleep", ms=20_000))
        assert "longer than the model's execution_timeout_ms (200)" in (await served.listener.lost()).message
        await survives(served)
        await asyncio.sleep(0.3)
        assert served.listener.idle(), "the timer of an answered batch is gone"


@played
async def test_many_crashes_wait_and_a_reopen_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "mark"
    async with serving(tmp_path, config(on_open="fail_when_marked")) as served:
        served.send(request(do="exit"))
        await served.listener.lost()
        await served.listener.back()
        mark.touch()
        served.send(request(do="exit"))
        await served.listener.lost()
        while not any("does not open in its restarted worker" in line for line in caplog.messages):
            await asyncio.sleep(0.01)
        assert served.listener.idle()
        assert await served.model.refusal(5)
        mark.unlink()
        await survives(served)
        served.send(request(do="exit"))
        await served.listener.lost()
        started = time.monotonic()
        await survives(served)
        assert time.monotonic() - started > 0.25, "the third crash waits"


@played
async def test_a_crash_at_reopening_counts_as_crash(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with serving(tmp_path, config(on_open="exit_when_marked")) as served:
        mark.touch()
        served.send(request(do="exit"))
        await served.listener.lost()
        while served.model.restarts < 3:
            await asyncio.sleep(0.01)
        mark.unlink()
        await survives(served)


@played
async def test_a_model_that_hangs_when_it_is_opened_again_may_be_unloaded_and_loaded_again(tmp_path: Path) -> None:
    limits = ProcessLimits(load=2, slow_load=0.5, silence=2)
    async with serving(tmp_path, limits=limits) as served:
        made, arena, listener = spec(tmp_path, config()), Arena("hung", Budget(1 << 24)), Recorder()
        hung = await served.workers.open(made, "echo", [InstanceSpec("hung")], listener, arena)
        made.config["parameters"]["on_open"] = {"string_value": "sleep"}
        os.kill(served.model.pids()[0], signal.SIGKILL)
        for one in (served.listener, listener):
            await one.lost()
        await served.listener.back()
        (pid,) = served.model.pids()
        while "did not load within 2 s" not in hung.trouble():
            await asyncio.sleep(0.1)
        await hung.close()
        await asyncio.sleep(2.5)  # the limit passes again, and the time without heartbeats
        assert values((await served.ask(request())).replies[0]) == list(range(16))
        again = await served.workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("hung")], listener, arena)
        assert (again.pids(), served.model.pids()) == ([pid], [pid])
        await again.close()
        arena.close()


@played
async def test_a_removed_instance_that_stays_busy_costs_its_worker_one_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, instances=2, limits=ProcessLimits(close=0.3)) as served:
        served.send(request(do="sleep", ms=20_000))
        await served.model.remove(0)
        assert "an instance of model 'echo' did not close within 0.3 s" in (await served.listener.lost(1)).message
        await served.listener.back(1)
        assert values((await served.ask(request(), instance=1)).replies[0]) == list(range(16))
        assert served.model.restarts == 1
