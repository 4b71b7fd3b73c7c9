"""Work on many bytes, beside the event loop when it would hold that up: NumPy copies without the interpreter's lock."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from edge_serve.aio.offload import Threads
from edge_serve.messages.tensors import Buffer

#: bytes that the loop touches itself: about 0.3 ms
MOST_AT_ONCE = 1 << 20

_STEP = 4 << 20
Done = Callable[["Exception | None"], None]

#: apart from `offload`: this work never waits for a file system that hangs
_threads = Threads("memory", 2)


def copy(moves: Sequence[tuple[memoryview, Buffer]]) -> None:
    """Copy each source to its target, which is as long."""
    import numpy as np

    for target, source in moves:
        if len(source):
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def move(target: memoryview, source: Buffer) -> None:
    """Copy `source`, which has no other user, and return its memory to the system."""
    copy([(target, source)])
    return_pages(source)


def return_pages(unused: Buffer) -> None:
    """Return memory with pages of its own to the system step by step: to return all of it with the last reference would
    take long."""
    own = unused.obj if isinstance(unused, memoryview) else None
    if isinstance(own, mmap.mmap):
        for start in range(0, len(own), _STEP):
            own.madvise(mmap.MADV_DONTNEED, start, min(_STEP, len(own) - start))
            time.sleep(0)  # the interpreter's lock is not released otherwise


def release_later(unused: object) -> None:
    """Let a thread have the last reference to something large, because to return its memory may take long. A machine
    without threads leaves it to the caller."""
    with suppress(OSError):
        _threads.start(_nothing, unused)


def _nothing(unused: object) -> None:
    """Do nothing: the call releases the reference."""


def work(nbytes: int, job: Callable[[], Any], done: Done) -> None:
    """Do `job`, which touches `nbytes`, and then call `done` on the loop with what it raised.

    A short job is done before this returns. So is any where no loop runs, and where no thread can be started: the loop
    can do the job, and nothing that depends on its outcome is lost.
    """
    if nbytes > MOST_AT_ONCE and _is_in_loop():
        with suppress(OSError):
            _threads.start(_outcome, job).add_done_callback(lambda future: done(future.result()))
            return
    done(_outcome(job))


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _outcome(job: Callable[[], Any]) -> Exception | None:
    try:
        job()
    except Exception as error:
        return error
    return None
