"""A session for programs without an event loop: runs one in a thread, and its methods wait for their results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
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
        self._closed = False
        self._submitting = threading.Lock()
        #: the process with the thread of the loop: a fork copies this object, and not the thread
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._started: Future[AsyncSession] = Future()
        #: not `Thread.join`: before Python 3.13, Ctrl-C in it makes the thread appear to have ended
        self._ended: Future[None] = Future()
        #: of the stop, until one `close` has raised it
        self._failure: BaseException | None = None
        self._ending = asyncio.Event()
        self._server = self._loop.create_task(self._serve(start), name="server")
        self._thread = threading.Thread(target=self._run_loop, name="edge-serve", daemon=True)
        self._thread.start()
        with self._cancelling():
            self._session = self._started.result()
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

        Each call waits until that is done. Ctrl-C meanwhile stops the server without waiting for answers. In a forked
        process this does nothing: the server is that of the process that started it. An error of the stop is raised
        once.
        """
        if os.getpid() != self._process:
            return
        self._call_soon(self._ending.set)
        with self._cancelling():
            self._ended.result()
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

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
        self._call_soon(lambda: self._loop.create_task(_close(responses)))

    def _call_soon(self, callback: Callable[[], object]) -> None:
        """Call this in the thread of the loop, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    @contextlib.contextmanager
    def _cancelling(self) -> Iterator[None]:
        """Cancel the server's start or end when a wait for it is interrupted, and wait until its processes are
        stopped."""
        try:
            yield
        except BaseException:
            self._call_soon(self._server.cancel)
            self._ended.result()
            raise

    async def _serve(self, start: Callable[[], Coroutine[Any, Any, AsyncSession]]) -> None:
        """Run the server until `_ending`."""
        try:
            session = await start()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(session)
        try:
            await self._ending.wait()
        except asyncio.CancelledError:  # Ctrl-C before the end has begun: the end does not drain either
            self._server.cancel()
        await session.close()

    def _run_loop(self) -> None:
        """Run the loop as long as the server, and close it: in its own thread, because that of the caller may run
        another. Calls that still wait in another thread fail."""
        try:
            self._loop.run_until_complete(asyncio.wait({self._server}))
            with self._submitting:
                self._closed = True
            self._loop.run_until_complete(_cancel_rest())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        finally:
            self._failure = None if self._server.cancelled() else self._server.exception()
            self._ended.set_result(None)


async def _next(responses: AsyncIterator[Outputs]) -> Outputs | None:
    return await anext(responses, None)


async def _close(responses: AsyncGenerator[Outputs, None]) -> None:
    await responses.aclose()


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
