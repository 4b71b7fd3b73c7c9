"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec

P = ParamSpec("P")

#: no story takes longer unless something is broken, seconds
PATIENCE = 40


def played(story: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Return a test that runs a story on a loop of its own; an error that only the loop saw is an error too."""

    @functools.wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        errors: list[dict[str, object]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
            await asyncio.wait_for(story(*args, **kwargs), PATIENCE)

        asyncio.run(main())
        assert not errors

    return test
