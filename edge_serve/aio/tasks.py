"""Background tasks: asyncio itself keeps weak references only, and tells of a failed task late or never."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_running: set[asyncio.Task[Any]] = set()


def start_task(coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task that needs no reference of its caller, and log the exception that it ends with, if any."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


async def repeat(name: str, seconds: float, step: Callable[[], Awaitable[object] | None]) -> None:
    """Call `step` with a pause of `seconds` before each call, until cancelled. An exception is logged."""
    while True:
        await asyncio.sleep(seconds)
        try:
            under_way = step()
            if under_way is not None:
                await under_way
        except Exception:
            log.exception("%s failed; the next try follows in %g s", name, seconds)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task '%s' failed", task.get_name(), exc_info=error)
