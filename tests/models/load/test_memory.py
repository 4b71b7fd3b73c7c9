"""Decisions whether a model fits into the memory of a machine, whose files the tests write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_serve.errors import Unavailable
from edge_serve.models.load.memory import SHARING_BYTES, WORKER_BYTES, Memory, MemoryFigures, Way, decide
from tests.devices.test_host_memory import machine
from tests.stories import played

MIB = 1 << 20


def test_a_machine_that_does_not_say_refuses_nothing(tmp_path: Path) -> None:
    assert Memory(0, tmp_path).figures("m", 1, 0) is None


def test_figures_are_estimated_until_they_are_measured(tmp_path: Path) -> None:
    memory = Memory(0, machine(tmp_path))
    first = memory.figures("m", 1000, 7)
    memory.measured("m", 2 * WORKER_BYTES)
    memory.promised = 5
    second = memory.figures("m", 1000, 0)

    assert first is not None
    assert second is not None
    assert (first.needed, first.measured, first.replaced, first.reserve) == (
        1000 + WORKER_BYTES, False, 7, 8 * MIB // 20,
    )  # fmt: skip
    assert (second.needed, second.measured, second.promised) == (2 * WORKER_BYTES, True, 5)
    grown = memory.figures("m", 3 * WORKER_BYTES, 0)
    assert grown is not None
    assert (grown.needed, grown.measured) == (4 * WORKER_BYTES, False)  # its files have become larger since


def test_a_worker_that_runs_already_is_not_counted_again(tmp_path: Path) -> None:
    figures = Memory(0, machine(tmp_path)).figures("m", 1000, 0, joins=True)

    assert figures is not None
    assert figures.needed == 1000 + SHARING_BYTES


class Bounded(Memory):
    """Memory of a machine that has room for one and a half workers."""

    available = WORKER_BYTES * 3 // 2

    def read(self) -> tuple[int, int]:
        return self.available, self.available


async def admitted(memory: Memory, name: str, log: list[str], until: asyncio.Event) -> None:
    async with memory.admit(name, 0, 0, joins=False, awaited=asyncio.Event()) as way:
        assert way is Way.BESIDE
        log.append(name)
        await until.wait()


@played
async def test_loads_wait_while_only_promises_are_in_the_way() -> None:
    memory, log, ends = Bounded(1), list[str](), [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(admitted(memory, str(i), log, end)) for i, end in enumerate(ends)]
    for number in range(3):
        await asyncio.sleep(0.01)
        assert log == [str(i) for i in range(number + 1)]
        ends[number].set()
    await asyncio.gather(*tasks)
    assert memory.promised == 0


@played
async def test_a_load_that_waited_is_refused_when_the_others_took_what_they_were_promised() -> None:
    memory, end = Bounded(1), asyncio.Event()
    tasks = [asyncio.create_task(admitted(memory, name, [], end)) for name in ("first", "second")]
    await asyncio.sleep(0.01)
    memory.available = WORKER_BYTES // 2
    end.set()
    await tasks[0]
    with pytest.raises(Unavailable, match=r"'second' does not fit into memory: it needs 40 MiB .* 0 MiB are prom"):
        await tasks[1]


@played
async def test_a_nested_load_is_refused_when_it_would_wait_for_the_load_that_waits_for_it() -> None:
    memory, nested = Bounded(1), asyncio.Event()
    nested.set()
    async with memory.admit("outer", 0, 0, joins=False, awaited=asyncio.Event()):
        with pytest.raises(Unavailable, match=r"'inner' does not fit into memory: .*40 MiB are promised to loads"):
            async with memory.admit("inner", 0, 0, joins=False, awaited=nested):
                pass
        async with memory.admit("inner", 0, WORKER_BYTES, joins=False, awaited=nested) as way:
            assert way is Way.INSTEAD
        assert memory.promised == WORKER_BYTES


@played
async def test_a_load_that_is_cancelled_while_it_waits_was_promised_nothing() -> None:
    memory, end = Bounded(1), asyncio.Event()
    tasks = [asyncio.create_task(admitted(memory, name, [], end)) for name in ("first", "second")]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    end.set()
    await asyncio.wait(tasks)
    assert (tasks[1].cancelled(), memory.promised) == (True, 0)


def figures(needed: int, available: int, promised: int = 0, reserve: int = 0, replaced: int = 0) -> MemoryFigures:
    return MemoryFigures(needed * MIB, False, available * MIB, promised * MIB, reserve * MIB, replaced * MIB)


@pytest.mark.parametrize(
    ("known", "way"),
    [
        (figures(100, 100), Way.BESIDE),
        (figures(100, 200, promised=50, reserve=50), Way.BESIDE),
        (figures(100, 200, replaced=100), Way.BESIDE),
        (figures(100, 99, replaced=1), Way.INSTEAD),
        (figures(100, 60, promised=20, reserve=20, replaced=80), Way.INSTEAD),
    ],
)
def test_beside_if_it_fits_else_instead(known: MemoryFigures, way: Way) -> None:
    assert decide("m", known) is way


@pytest.mark.parametrize("known", [figures(100, 99), figures(100, 60, 20, 60, 79), figures(100, 10, reserve=50)])
def test_a_model_that_does_not_fit_is_refused(known: MemoryFigures) -> None:
    with pytest.raises(Unavailable, match="'m' does not fit into memory: it needs 100 MiB"):
        decide("m", known)


@pytest.mark.parametrize(
    "known",
    [
        figures(100, 100, promised=1),
        figures(100, 120, promised=20, reserve=20),
        figures(100, 60, 20, 20, 79),
        figures(100, 100, promised=50, replaced=50),  # loading it instead would cost its clients a wait
    ],
)
def test_only_promises_are_in_the_way(known: MemoryFigures) -> None:
    assert decide("m", known) is Way.LATER


def test_the_error_has_the_figures() -> None:
    known = MemoryFigures(300 * MIB, True, 200 * MIB, 10 * MIB, 20 * MIB, 30 * MIB)
    with pytest.raises(Unavailable) as refused:
        decide("m", known)
    assert refused.value.message == (
        "model 'm' does not fit into memory: it needs 300 MiB (measured when it was loaded before), 200 MiB are "
        "available, 10 MiB are promised to loads under way and 20 MiB are kept in reserve (--memory-reserve-bytes), "
        "30 MiB come back from the version that serves. Unload another model first"
    )
