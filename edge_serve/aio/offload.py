"""Daemon threads for blocking work, which would otherwise hold the event loop.

No thread is joined, neither when a caller is cancelled nor when the interpreter exits: a function that hangs, for
example on a file system that does not answer, delays neither SIGTERM nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: threads of `offload`: as many functions may hang before others have to wait for a thread
LIMIT = 32


class Threads:
    """A bounded pool of daemon threads, which are started when they are needed.

    Work that may hang, such as reading files, belongs in `offload`. Work that is always short has a pool of its own, so
    that it never waits for a function that hangs.

    Args:
        name: of the threads.
        limit: number of functions that run at the same time; further ones wait.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start without threads and jobs, also in a process to which `fork` has given no thread but its own."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call `function(*args)` in a thread, and return the future of its result.

        When the future is cancelled, a function that has not begun is not called; the result of another is discarded.

        Raises:
            OSError: there is no thread, and the machine lets none start now.
        """
        loop = asyncio.get_running_loop()
        self._need_thread()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                _report(loop, _fail, future, error)
            else:
                _report(loop, _succeed, future, result)

        self._jobs.put(job)
        return future

    def _need_thread(self) -> None:
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._count == self._limit:
                return
            thread = threading.Thread(target=self._work, name=f"{self._name} {self._count + 1}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._count:  # otherwise a thread that exists takes the job
                    raise BlockingIOError(errno.EAGAIN, "no thread can be started") from error
            else:
                self._count += 1

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            self._idle.release()


_threads = Threads("offload", LIMIT)


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function(*args)` in a thread and return its result, or raise its exception.

    The caller may be cancelled at any time, for example by `asyncio.wait_for`. The thread then continues by itself, and
    its result is discarded.
    """
    return await _threads.start(function, *args, **kwargs)


def _report(loop: asyncio.AbstractEventLoop, report: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result any more
        loop.call_soon_threadsafe(report, *args)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error if not isinstance(error, StopIteration) else RuntimeError(repr(error)))
