"""The event loop of an instance whose model has `async def` methods; a thread of its own, from the first use on.

The loop goes on between calls, because models leave tasks in it. While the instance waits for a coroutine, the host is
told when the loop has come to rest: when no timer runs and no socket is watched, so that only another thread can wake
it, such as the one that brings the answers to calls of other models.

Most models have no such methods, and asyncio takes 10 ms to import, so only the others import it.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from edge_serve.backends import host

if TYPE_CHECKING:
    import asyncio

#: a loop that has nothing to do for so long is at rest; most answers are there before
REST_SECONDS = 0.02
#: longest pause before the host is asked again, while another thread might wake the loop
MOST_REST_SECONDS = 1.0


class _Selector(selectors.DefaultSelector):
    """Tells the host before it sleeps for ever.

    Attributes:
        awaited: the instance waits for what runs in the loop.
    """

    awaited = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the sockets of the loop; `timeout` is None when there is no timer."""
        if timeout is None and self.awaited and len(self.get_map()) == 1:  # other threads write to that socket
            return self._rest()
        return super().select(timeout)

    def _rest(self) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = []

        def still() -> bool:
            events.extend(super(_Selector, self).select(0))
            return not events

        pause = REST_SECONDS
        while self.awaited:
            events += super().select(pause)
            if events or host.current().report_idle(still):
                break
            pause = min(2 * pause, MOST_REST_SECONDS)
        return events or super().select(None)


async def _in_worker(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine. A child that the model forks exits when it returns from the model's code: in the loop it would
    take wake-ups from the worker, whose sockets it shares."""
    worker = os.getpid()
    try:
        return await coroutine
    finally:
        if os.getpid() != worker:
            os._exit(0)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped. `sys.exit()` in a task leaves `run_forever`; the other tasks continue."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue  # the task has the exception


class EventLoop:
    """A loop that other threads hand coroutines to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._selector = _Selector()
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any], *, alone: bool = False) -> Any:
        """Run it to its end and give its result, or raise what it raised.

        Args:
            alone: the caller is the only thread of its instance, which does nothing else until then.
        """
        import asyncio

        if alone:  # `is_ready` runs beside it, and must not change this
            self._selector.awaited = True
        try:
            return asyncio.run_coroutine_threadsafe(_in_worker(coroutine), self._started()).result()
        finally:
            if alone:
                self._selector.awaited = False

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run it in the background."""
        import asyncio

        asyncio.run_coroutine_threadsafe(_in_worker(coroutine), self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = self._new_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=f"{self._name} loop", daemon=True)
                self._thread.start()
            return self._loop

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop with our selector, or of the kind that the model has chosen (`uvloop.install()`). Such a kind
        does not report that it is idle."""
        import asyncio

        if type(asyncio.get_event_loop_policy()) is asyncio.DefaultEventLoopPolicy:
            return asyncio.SelectorEventLoop(self._selector)
        return asyncio.new_event_loop()

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what still runs and stop; waits `timeout` seconds at most."""
        if self._loop is None or self._thread is None:
            self._selector.close()
            return
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._loop.close()
            self._selector.close()

    def _cancel_all(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: loop.stop())
