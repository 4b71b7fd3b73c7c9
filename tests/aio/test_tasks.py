"""Background tasks live without a reference of their caller, and tell when they fail."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from edge_serve.aio.tasks import notify, start_task
from tests.stories import played


@played
async def test_a_task_lives_although_its_caller_keeps_no_reference() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.set()

    start_task(work(), "work")
    gc.collect()
    await asyncio.wait_for(done.wait(), 10)


def test_a_task_that_fails_is_logged_and_a_cancelled_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def work(divisor: int) -> None:
        await asyncio.sleep(1 // divisor)

    async def story() -> None:
        cancelled = start_task(work(1), "cancelled")
        failing = start_task(work(0), "failing")
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({failing, cancelled})

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert "task 'failing' failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "cancelled" not in caplog.text


def test_callbacks_get_their_arguments() -> None:
    found: list[int] = []
    notify(found.append, 3)
    assert found == [3]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    notify(divmod, 1, 0)
    assert "callback divmod failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
