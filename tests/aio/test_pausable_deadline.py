"""A time limit that stands still while something is held."""

from __future__ import annotations

import asyncio

from edge_serve.aio.pausable_deadline import PausableDeadline
from tests.stories import played


@played
async def test_deadline_expires_once() -> None:
    over = asyncio.Event()
    PausableDeadline(asyncio.get_running_loop(), 0.01, over.set)
    await over.wait()


@played
async def test_the_time_of_pauses_does_not_count() -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    patience = PausableDeadline(loop, 0.05, over.set)
    patience.set_paused(False)
    patience.set_paused(True)
    patience.set_paused(True)
    await asyncio.sleep(0.15)
    assert not over.is_set()
    assert 0 < patience.left() <= 0.05

    started = loop.time()
    patience.set_paused(False)
    await over.wait()
    assert loop.time() - started > 0.02
    assert patience.left() == 0


@played
async def test_a_deadline_may_begin_with_a_pause() -> None:
    over = asyncio.Event()
    deadline = PausableDeadline(asyncio.get_running_loop(), 0.0, over.set, paused=True)
    await asyncio.sleep(0.01)
    assert not over.is_set()
    deadline.set_paused(False)
    await over.wait()


@played
async def test_a_cancelled_deadline_never_expires() -> None:
    over = asyncio.Event()
    patience = PausableDeadline(asyncio.get_running_loop(), 0.01, over.set)
    patience.set_paused(True)
    patience.cancel()
    patience.set_paused(False)
    patience.set_paused(True)
    patience.set_paused(False)
    await asyncio.sleep(0.05)
    assert not over.is_set()


@played
async def test_the_time_in_which_the_clock_stops_does_not_count() -> None:
    now, over = [0.0], asyncio.Event()
    deadline = PausableDeadline(asyncio.get_running_loop(), 0.01, over.set, time=lambda: now[0])
    await asyncio.sleep(0.1)
    assert not over.is_set()
    assert deadline.left() == 0.01
    now[0] = 0.01
    await over.wait()
