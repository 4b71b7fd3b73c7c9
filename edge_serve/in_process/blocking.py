"""A session for programs without an event loop: runs one in a thread, and its methods wait for their results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from edge_serve.errors import Unavailable
from edge_serve.in_process.arrays import Inputs, Outputs
from edge_serve.in_process.session import AsyncSession, Options
from edge_serve.messages.metadata import IndexEntry

Result = TypeVar("Result")


class Session:
    """The methods of `AsyncSession`, each of which waits for its result. Threads may share a session.

    Attributes:
        addresses: see `AsyncSession`.
    """

    def __init__(self, start: Callable[[], Coroutine[Any, Any, AsyncSession]]) -> None:
        self._closed = self._closing = False
        self._submitting = threading.Lock()
        #: the thread that closes has it; that thread itself may call again, as from the handler of a signal
        self._close_lock = threading.RLock()
        #: the process with the thread of the loop: a fork copies this object, and not the thread
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="edge-serve", daemon=True)
        self._thread.start()
        try:
            self._session = self._run(start())
        except BaseException:
            self._stop()
            raise
        self.addresses = self._session.addresses

    def infer(self, model: str, inputs: Inputs, options: Options | None = None, **more: Any) -> Outputs:
        """See `AsyncSession.infer`."""
        return self._run(self._session.infer(model, inputs, options, **more))

    def stream(self, model: str, inputs: Inputs, options: Options | None = None, **more: Any) -> Iterator[Outputs]:
        """See `AsyncSession.stream`."""
        responses = self._session.stream(model, inputs, options, **more)
        try:
            while (outputs := self._run(_next(responses))) is not None:
                yield outputs
        finally:
            self._close_stream(responses)

    def load(self, model: str, config: Mapping[str, Any] | str = "", files: Mapping[str, bytes] | None = None) -> None:
        """See `AsyncSession.load`."""
        self._run(self._session.load(model, config, files))

    def unload(self, model: str) -> None:
        """See `AsyncSession.unload`."""
        self._run(self._session.unload(model))

    def ready(self, model: str = "", version: str = "") -> bool:
        """See `AsyncSession.ready`."""
        return self._run(self._session.ready(model, version))

    def models(self) -> list[IndexEntry]:
        """See `AsyncSession.models`."""
        return self._run(self._session.models())

    def close(self) -> None:
        """Answer the accepted requests, then stop the server; the end of `with` does this.

        The first call does it. Those of other threads wait until it has, and later ones do nothing. So do those of a
        forked process: the server is that of the process that started it.
        """
        if os.getpid() != self._process:
            return
        with self._close_lock:
            if self._closing:
                return
            self._closing = True
            try:
                self._run(self._session.close())
            finally:
                self._stop()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if os.getpid() != self._process:  # before the lock, which a thread may have had at the fork
            work.close()
            raise Unavailable(
                f"the server was started by process {self._process} and this one is forked from it, where a session "
                "cannot be used: start a Server here, or processes with multiprocessing's 'spawn'"
            )
        with self._submitting:
            if self._closed:
                work.close()
                raise Unavailable("the server has been stopped: its `with` block is over")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Unavailable("the server was stopped") from None
        except BaseException:
            future.cancel()  # Ctrl-C while it waits: the answer is not needed
            raise

    def _close_stream(self, responses: AsyncGenerator[Outputs, None]) -> None:
        """Close a stream without waiting: the garbage collector calls this in any thread, also that of the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the stream
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(_close(responses)))

    def _stop(self) -> None:
        """Stop the loop. Calls that still wait in another thread fail."""
        with self._submitting:
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run_loop(self) -> None:
        """Run the loop until `_stop`, and close it: in its own thread, because that of the caller may run another."""
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_rest())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _next(responses: AsyncIterator[Outputs]) -> Outputs | None:
    return await anext(responses, None)


async def _close(responses: AsyncGenerator[Outputs, None]) -> None:
    await responses.aclose()


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
