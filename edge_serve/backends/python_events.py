"""The event loop of an instance whose model has `async def` methods; a thread of its own, from the first use on.

The loop goes on between calls, because models leave tasks in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any


class EventLoop:
    """A loop that other threads hand coroutines to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end and give its result, or raise what it raised."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run it in the background."""
        asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=f"{self._name} loop", daemon=True)
                self._thread.start()
            return self._loop

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what still runs and stop; waits `timeout` seconds at most."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._loop.close()

    def _cancel_all(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: loop.stop())
        else:
            loop.stop()
