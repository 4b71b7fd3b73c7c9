"""Work on many bytes, beside the event loop when it would hold that up: NumPy copies without the interpreter's lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edge_serve.tensors import Buffer

#: what the loop copies itself: about 0.1 ms
MOST_AT_ONCE = 1 << 20

Done = Callable[["Exception | None"], None]


def copy(moves: Sequence[tuple[memoryview, Buffer]]) -> None:
    """Copy each source to its target, which is as long."""
    for target, source in moves:
        if len(source):
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def work(loop: asyncio.AbstractEventLoop, nbytes: int, job: Callable[[], Any], done: Done) -> None:
    """Do `job`, which touches `nbytes`, and then call `done` on the loop with what it raised.

    A short job is done before this returns.
    """
    if nbytes > MOST_AT_ONCE:
        loop.run_in_executor(None, _in_thread, loop, job, done)
    else:
        done(_outcome(job))


def _in_thread(loop: asyncio.AbstractEventLoop, job: Callable[[], Any], done: Done) -> None:
    outcome = _outcome(job)
    with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
        loop.call_soon_threadsafe(done, outcome)


def _outcome(job: Callable[[], Any]) -> Exception | None:
    try:
        job()
    except Exception as error:
        return error
    return None
