"""The memory of GPUs, whose figures the tests set."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.errors import Unavailable
from edge_serve.models.load import device_memory
from edge_serve.models.load.device_memory import CONTEXT_BYTES, DeviceMemory
from edge_serve.models.load.memory import Memory, Way
from edge_serve.models.versions.instance_group import Placed
from edge_serve.observe.metrics.gpu import GpuReading, ReadGpus
from tests.stories import played

MIB = 1 << 20
CARD = Gpu(0, "card", "GPU-0", (8, 9), 1000 * MIB)
SECOND = Gpu(1, "card", "GPU-1", (8, 9), 1000 * MIB)
JETSON = Gpu(0, "Orin", "GPU-7", (8, 7), 1000 * MIB, integrated=True)


@dataclass
class Board:
    """Readings of GPUs with 1000 MiB each, of which the driver reserves some."""

    used: dict[str, int] = field(default_factory=lambda: {"GPU-0": 0, "GPU-1": 0})
    reserved: int = 0

    def find(self) -> ReadGpus:
        return lambda: [
            GpuReading(
                uuid,
                memory_total=1000 * MIB,
                memory_used=used * MIB,
                memory_free=(1000 - self.reserved - used) * MIB,
            )
            for uuid, used in self.used.items()
        ]


def memory_of(board: Board, limits: dict[int, float] | None = None, root: Path = Path("/nowhere")) -> DeviceMemory:
    return DeviceMemory(Memory(0, root), limits, board.find)


async def load(memory: DeviceMemory, board: Board, mib: int, name: str = "m", gpu: Gpu = CARD) -> dict[str, int]:
    async with memory.measured(name, [gpu]) as taken:
        board.used[gpu.uuid] += mib
    return taken


async def way(memory: DeviceMemory, files: int, gpu: Gpu = CARD, *, joins: bool = False, replaces: bool = False) -> Way:
    async with memory.admit("m", [gpu], files * MIB, joins=joins, replaces=replaces, awaited=asyncio.Event()) as found:
        return found


def test_model_that_does_not_fit_is_refused_with_both_values() -> None:
    board = Board({"GPU-0": 400})

    with pytest.raises(Unavailable) as refused:
        asyncio.run(way(memory_of(board), 600 - CONTEXT_BYTES // MIB + 1))

    assert refused.value.message == (
        "model 'm' does not fit into the memory of GPU 0 (card): it needs 601 MiB (estimated from its files), 600 MiB "
        "are available and 0 MiB are promised to loads under way. Unload another model first, or let it share a worker "
        "(parameter EDGE_SERVE_WORKER: shared)"
    )
    assert asyncio.run(way(memory_of(board), 600, joins=True)) is Way.BESIDE, "without a context of its own"


def test_memory_that_the_driver_reserves_is_not_available() -> None:
    board = Board({"GPU-0": 400}, reserved=50)

    with pytest.raises(Unavailable, match=r"it needs 551 MiB .*, 550 MiB are available"):
        asyncio.run(way(memory_of(board), 551, joins=True))
    assert asyncio.run(way(memory_of(board), 550, joins=True)) is Way.BESIDE


@played
async def test_need_is_learnt_at_the_last_load() -> None:
    board = Board()
    memory = memory_of(board)
    assert await load(memory, board, 700) == {"GPU-0": 700 * MIB}
    board.used["GPU-0"] = 350
    with pytest.raises(Unavailable, match=r"it needs 700 MiB \(measured when it was loaded before\), 650 MiB are"):
        await way(memory, 1)


@played
async def test_serving_version_is_unloaded_first_if_both_do_not_fit() -> None:
    board = Board()
    memory = memory_of(board)
    await load(memory, board, 700)
    assert await way(memory, 1, replaces=True) is Way.INSTEAD


@played
async def test_load_waits_for_memory_that_is_promised_to_another() -> None:
    memory, second = memory_of(Board()), asyncio.Event()

    async def later() -> None:
        assert await way(memory, 500) is Way.BESIDE
        second.set()

    async with memory.admit("first", [CARD], 500 * MIB, joins=False, replaces=False, awaited=asyncio.Event()):
        task = asyncio.create_task(later())
        await asyncio.sleep(0.02)
        assert not second.is_set()
        assert await way(memory, 500, SECOND) is Way.BESIDE, "another GPU has room"
        nested = asyncio.Event()
        nested.set()
        with pytest.raises(Unavailable, match="756 MiB are promised to loads under way"):
            async with memory.admit("m", [CARD], 500 * MIB, joins=False, replaces=False, awaited=nested):
                pass
    await task


def test_load_that_waits_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        memory = memory_of(Board())
        async with memory.admit("first", [CARD], 500 * MIB, joins=False, replaces=False, awaited=asyncio.Event()):
            task = asyncio.create_task(way(memory, 500))
            for _ in range(2):
                await asyncio.sleep(0.02)
                assert await way(memory, 50, joins=True) is Way.BESIDE, "its promise ends, and is not enough"
            await asyncio.sleep(0.02)
        assert await task is Way.BESIDE

    caplog.set_level("INFO")
    asyncio.run(story())
    assert caplog.messages == ["model m waits for GPU memory that is promised to loads"]


@played
async def test_memory_of_concurrent_loads_is_not_measured() -> None:
    board = Board()
    memory = memory_of(board)
    async with memory.measured("a", [CARD, SECOND]) as first:
        board.used["GPU-1"] += 5
        second = await load(memory, board, 100, "b")
    assert (first, second) == ({"GPU-1": 5 * MIB}, {})


def test_integrated_gpu_counts_the_memory_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {1000 << 10} kB\nMemAvailable: {500 << 10} kB\n")

    with pytest.raises(Unavailable, match=r"the memory of GPU 0 \(Orin\): it needs 556 MiB .*, 500 MiB are available"):
        asyncio.run(way(memory_of(Board({}), root=tmp_path), 300, JETSON))


def test_unknown_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "READ_SECONDS", 0.01)
    unknown = DeviceMemory(Memory(0, Path("/nowhere")), {0: 0.1}, lambda: lambda: [GpuReading("GPU-0")])
    hangs = DeviceMemory(Memory(0, Path("/nowhere")), None, lambda: lambda: time.sleep(0.1) or [])  # type: ignore[func-returns-value]

    assert asyncio.run(way(unknown, 10_000)) is Way.BESIDE
    assert asyncio.run(way(hangs, 10_000)) is Way.BESIDE


def test_limit_is_checked_after_the_load_with_tritons_text() -> None:
    board = Board({"GPU-0": 500, "GPU-1": 900})
    memory, devices = memory_of(board, {0: 0.5}), Gpus((CARD, SECOND), (13, 0))
    made = [Placed(InstanceSpec(f"m_{i}", "GPU", i), pb.ModelInstanceGroup(), b"") for i in (0, 1)]

    asyncio.run(memory.check_limits(made, devices))
    board.used["GPU-0"] = 501
    with pytest.raises(Unavailable) as refused:
        asyncio.run(memory.check_limits(made, devices))

    assert refused.value.message == (
        "can not create model 'm_0': memory limit set for GPU 0 has exceeded, model loading is rejected."
    )


def test_limit_without_a_reading_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    memory = memory_of(Board({}), {0: 0.5})
    made = [Placed(InstanceSpec("m_0", "GPU", 0), pb.ModelInstanceGroup(), b"")]

    asyncio.run(memory.check_limits(made, Gpus((CARD,), (13, 0))))

    assert "--model-load-gpu-limit=0 has no effect: the memory of the GPU cannot be read; pip install" in caplog.text
