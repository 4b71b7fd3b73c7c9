"""Time limits of models whose worker loads another model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.clock import MonotonicClock
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferResponse
from edge_serve.models.run.decoupled import DecoupledDriver
from edge_serve.models.run.statistics import new_statistics
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.workers.front.workers import ProcessLimits
from edge_serve.workers.memory.arena import Arena, Budget
from tests.stories import played
from tests.workers.harness import Recorder, Served, config, request, serving, spec


@asynccontextmanager
async def loading_beside(served: Served, directory: Path, on_open: str) -> AsyncIterator[None]:
    """A load in the same worker meanwhile, which takes 0.7 s."""
    arena = Arena("late", Budget(1 << 20))
    made = spec(directory, config(on_open=on_open))
    load = asyncio.create_task(served.workers.open(made, "echo", [InstanceSpec("late")], Recorder(), arena))
    await asyncio.sleep(0.2)
    yield
    with suppress(EdgeServeError):
        await (await load).close()
    arena.close()


@played
async def test_no_limit_runs_while_the_load_of_another_model_holds_the_interpreter(tmp_path: Path) -> None:
    """It holds the GIL, as ONNX Runtime up to 1.23 does."""
    limits = ProcessLimits(close=0.3, hang=0.3)
    async with serving(tmp_path, config(execution_timeout_ms="300"), limits=limits) as served:
        pids, arena = served.model.pids(), Arena("third", Budget(1 << 20))
        third = await served.workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("3")], Recorder(), arena)
        async with loading_beside(served, tmp_path, "hold"):
            questions = asyncio.gather(served.ask(request()), served.model.refusal(0.3), third.close())
            while not questions.done():
                assert max(served.workers.watch().values()) <= 0
                await asyncio.sleep(0.05)
            _, refusal, _ = await questions
        assert not refusal
        assert served.model.pids() == pids
        arena.close()


@pytest.mark.slow
@played
async def test_the_limit_of_a_stream_stops_with_the_interpreter_after_its_batch(tmp_path: Path) -> None:
    async with serving(tmp_path, config(decoupled=True, execution_timeout_ms="300")) as served:
        loop, responses = asyncio.get_running_loop(), list[InferResponse]()
        driver = DecoupledDriver("echo", "1", DirectScheduler(1), new_statistics(), MonotonicClock(), loop)
        driver.model, served.model.listener = served.model, driver
        driver.submit(request(do="partials", times=0), 1, None, responses.append)
        async with loading_beside(served, tmp_path, "hold"):
            await asyncio.sleep(0.3)  # 0.2 s have passed before
            assert not responses
        while not responses:
            await asyncio.sleep(0.02)
        assert "no final one within its execution_timeout_ms" in str(responses[0].error)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["hang", "execution_timeout_ms"])
@played
async def test_a_limit_runs_while_the_load_of_another_model_leaves_the_interpreter_free(
    tmp_path: Path, limit: str
) -> None:
    made = config(execution_timeout_ms="300") if limit != "hang" else config()
    async with serving(tmp_path, made, limits=ProcessLimits(hang=0.3)) as served:
        async with loading_beside(served, tmp_path, "doze"):
            served.send(request(do="sleep", ms=20_000))
            started = time.monotonic()
            while limit == "hang" and max(served.workers.watch().values()) <= 0:
                await asyncio.sleep(0.02)
            assert ("hangs" if limit == "hang" else limit) in (await served.listener.lost()).message
            assert time.monotonic() - started < 0.65
        await served.listener.back()
