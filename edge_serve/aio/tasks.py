"""Background tasks, isolated callbacks, and long work in pieces: all on the event loop.

asyncio itself keeps only weak references to tasks, and tells of a failed task late or never.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: seconds of one piece
_PIECE = 0.001

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


async def wait_first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task '%s' failed", task.get_name(), exc_info=error)


def notify(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call `callback(*args)`. Log an exception that it raises, with its traceback, and return as usual."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log_failure(callback)


def log_failure(callback: Callable[..., object]) -> None:
    """Log the exception that is being handled, which `callback` has raised."""
    log.exception("callback %s failed", getattr(callback, "__qualname__", repr(callback)))


async def gathered(items: Iterable[T]) -> list[T]:
    """Return the items; other callbacks have their turn while they are made (`in_pieces`)."""
    found: list[T] = []
    async for made in in_pieces(items):
        found += made
    return found


async def in_pieces(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """Iterate over `items` and yield them in lists, each made in one millisecond. The loop has a turn after each.

    Items may change things that other callbacks change too: nothing runs while a list is made.
    """
    made: list[T] = []
    end = time.perf_counter() + _PIECE
    for item in items:
        made.append(item)
        if time.perf_counter() >= end:
            yield made
            made = []
            await asyncio.sleep(0)
            end = time.perf_counter() + _PIECE
    yield made
