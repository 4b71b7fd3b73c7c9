"""A TensorRT model in a real worker, whose arena is registered with its device, and trimmed between the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.front.workers import Workers
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.memory.pinned import PinnedPages, PinnedPool
from tests.stand_ins.plans import plan, tensor
from tests.workers.harness import Recorder, Served, run

ROOT = Path(__file__).parents[3]
#: floats of a request: above INLINE_BYTES, so its tensors lie in the arena
ROW = 10_000
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests/stand_ins'}:{ROOT}")


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Served]:
    """Yield the model `m`, which answers with its input."""
    content = plan(
        "identity",
        [tensor("INPUT0", "INPUT", "FLOAT", (-1, ROW)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, ROW))],
        [{"INPUT0": ((1, ROW), (2, ROW), (4, ROW))}],
    )
    (directory / "1").mkdir()
    (directory / "1" / "model.plan").write_bytes(content)
    config: dict[str, Any] = {
        "name": "m", "backend": "tensorrt", "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [ROW]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [ROW]}],
        "instance_group": [{"name": "m_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}],
    }  # fmt: skip
    workers, account, listener = Workers(), Budget(256 * MIB, PinnedPool(64 * MIB)), Recorder()
    arena = Arena("m", account)
    try:
        spec = ModelSpec("m", 1, directory, directory / "1", config)
        model = await workers.open(spec, "tensorrt", [InstanceSpec("m_0_0", "GPU", 0)], listener, arena)
        served = Served(workers, model, listener, arena, account)
        yield served
        await served.close()
        assert account.used == account.pinned.used == 0
    finally:
        await workers.stop()
        arena.close()


async def ask(served: Served, values: Any) -> Any:
    """Return the answer to one row, whose input and output lie in the arena."""
    slot = served.arena.allocate(values.nbytes)
    ready = asyncio.Event()
    slot.when_ready(ready.set)
    await ready.wait()
    slot.view[:] = memoryview(values).cast("B")
    one = InferTensor("INPUT0", DataType.FP32, (1, ROW), slot.view, slot.offset)
    reply = await served.ask(InferRequest("m", inputs=[one]))
    slot.release()
    (answer,) = reply.replies
    assert answer.error is None, answer.error
    found = np.frombuffer(bytes(answer.outputs[0].data), np.float32)
    if reply.lease is not None:
        reply.lease.release()
    return found


async def trim(served: Served) -> None:
    for _ in range(2):
        served.arena.age()
    await served.arena.trim()


async def until_registered(served: Served) -> None:
    """Ask until the worker has registered the low end of the arena."""
    while not served.budget.pinned.used:
        await ask(served, np.zeros(ROW, np.float32))
    await ask(served, np.zeros(ROW, np.float32))


async def wrong_answers(served: Served, count: int, every: int) -> int:
    """Return how many of `count` answers differ from their requests, with a trim after each `every`."""
    wrong = 0
    base = np.random.default_rng(1).random(ROW, np.float32)
    for number in range(count):
        values = base + np.float32(number)
        wrong += not np.array_equal(await ask(served, values), values)
        if number % every == every - 1:
            await trim(served)
    return wrong


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_answer_is_right_with_trims_between_the_requests(tmp_path: Path, count: int) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            await until_registered(served)
            assert served.budget.pinned.used == served.arena.pinned.count * 4096 == 8 * MIB

            assert await wrong_answers(served, count, 3) == 0

    run(work())


def test_slots_that_an_integrated_device_reads_and_writes_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_CUDA", "integrated=1")

    async def work() -> None:
        async with serving(tmp_path) as served:
            await until_registered(served)

            assert await wrong_answers(served, 30, 3) == 0

    run(work())


def test_without_the_promise_answers_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: pages that are returned while they are registered are lost for the device."""

    def acquire(self: PinnedPages, holder: object, nbytes: int, kept: Callable[[int], None]) -> None:
        self._pool.used += nbytes
        kept(nbytes)

    monkeypatch.setattr(PinnedPages, "acquire", acquire)

    async def work() -> None:
        async with serving(tmp_path) as served:
            await until_registered(served)

            assert await wrong_answers(served, 30, 3) > 0
            served.budget.pinned.used = 0

    run(work())


def test_pages_are_free_again_when_the_worker_dies(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as served:
            await until_registered(served)
            served.model.restart("asked to")
            await served.listener.lost()
            assert served.budget.pinned.used == served.arena.pinned.count == 0

            await served.listener.back()
            await until_registered(served)
            assert await wrong_answers(served, 10, 3) == 0

    run(work())
