"""A time limit for a blocking function where no event loop waits for it. Imports no asyncio: programs start sooner."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def within(seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function(*args)` in a daemon thread and return its result, or raise its exception.

    Raises:
        TimeoutError: it took longer, as on a file system that does not answer. The thread is left behind.
    """
    done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            done.put((function(*args, **kwargs), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=work, name="limited", daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        raise TimeoutError(errno.ETIMEDOUT, f"it does not answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]  # the function's
