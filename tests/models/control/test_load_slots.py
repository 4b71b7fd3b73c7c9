"""Loads that wait for a slot."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from edge_serve.models.control.load_slots import LoadSlots
from tests.stories import played


@played
async def test_a_late_load_gives_its_slot_away_once() -> None:
    slots = LoadSlots(1)
    begun: list[str] = []
    ends = {name: asyncio.Event() for name in ("late", "second", "third")}

    async def load(name: str) -> None:
        async with slots.take(asyncio.Event()):
            begun.append(name)
            await ends[name].wait()

    async def begin() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(load(name)) for name in ends]
    await begin()
    assert begun == ["late"]
    slots.release_late(time.monotonic() - 60)
    await begin()
    assert begun == ["late"], "it has just begun"
    slots.release_late(time.monotonic() + 60)
    await begin()
    assert begun == ["late", "second"]
    ends["late"].set()
    await begin()
    assert begun == ["late", "second"], "its end must not free a slot again"
    ends["second"].set()
    await begin()
    assert begun == ["late", "second", "third"]
    ends["third"].set()
    await asyncio.gather(*tasks)
    assert not slots.is_full()


@played
async def test_a_new_size_counts_from_the_next_load() -> None:
    slots = LoadSlots(4)
    async with AsyncExitStack() as held:
        await held.enter_async_context(slots.take(asyncio.Event()))
        slots.resize(1)
        await held.enter_async_context(slots.take(asyncio.Event()))
        assert slots.is_full()
    assert not slots.is_full()


@played
async def test_a_load_that_another_one_waits_for_needs_no_slot() -> None:
    slots, awaited, log = LoadSlots(1), asyncio.Event(), list[str]()

    async def load(name: str, awaited: asyncio.Event) -> None:
        async with slots.take(awaited):
            log.append(name)

    async with slots.take(asyncio.Event()):
        tasks = [asyncio.create_task(load(*one)) for one in (("first", asyncio.Event()), ("awaited", awaited))]
        await asyncio.sleep(0)
        awaited.set()
        await tasks[1]
        await load("nested", awaited)
        assert log == ["awaited", "nested"]
        assert slots.is_full()
    await tasks[0]
    assert not slots.is_full()


@played
async def test_a_load_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    slots = LoadSlots(1)
    for moment in (0, 1):
        async with AsyncExitStack() as held:
            await held.enter_async_context(slots.take(asyncio.Event()))
            task = asyncio.create_task(held.enter_async_context(slots.take(asyncio.Event())))
            for _ in range(3):
                await asyncio.sleep(0)
            if moment:
                await held.aclose()  # the slot comes at the same moment
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        assert not slots.is_full()
