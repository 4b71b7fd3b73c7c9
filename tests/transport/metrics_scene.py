"""The scene that tests of the metrics door share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from edge_serve.transport.door.exchange import Application, Exchange


def page_of(text: bytes) -> Callable[[], Awaitable[Sequence[bytes]]]:
    """A `render` that gives always the same page."""

    async def render() -> Sequence[bytes]:
        return [text]

    return render


def answered(application: Application, exchange: Exchange) -> None:
    """Let it answer, in a task perhaps."""

    async def story() -> None:
        application.handle(exchange)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    asyncio.run(story())
