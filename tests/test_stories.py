"""A story fails by an error that its own code never sees."""

from __future__ import annotations

import asyncio

import pytest

from tests.stories import played


def fail() -> None:
    raise ValueError("a fault")


async def fail_later() -> None:
    fail()


def test_an_exception_of_a_callback_fails_the_story() -> None:
    @played
    async def story() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError):
        story()


def test_an_exception_of_a_task_without_a_reader_fails_the_story() -> None:
    @played
    async def story() -> None:
        task = asyncio.ensure_future(fail_later())
        await asyncio.wait({task})

    with pytest.raises(AssertionError):
        story()
