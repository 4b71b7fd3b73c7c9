"""Calls of other models while they are under way: responses that come from another thread, and who waits for them.

Contract: triton-inference-server/python_backend src/pb_response_iterator.cc and src/infer_request.cc (Exec).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from edge_serve.backends import host
from edge_serve.backends.base import Reply
from edge_serve.backends.python.api.errors import MODULE
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.errors import EdgeServeError

if TYPE_CHECKING:
    import asyncio


class Replies:
    """The responses to one call. `next` waits for them, in order; `cancel` may be called any time."""

    def __init__(self, call: host.ModelCall, on_first: Callable[[], None] | None = None, gpu: int = -1) -> None:
        """Start a call. One that cannot be made is answered with an error, as in Triton.

        Args:
            gpu: where the outputs should lie; -1 = on the host.
            on_first: called by another thread once `next` need not wait.
        """
        self.finished = False
        self._queue: SimpleQueue[tuple[Reply, bool]] = SimpleQueue()
        self._on_first = on_first
        self._gpu = gpu
        self._cancel: host.Cancel = lambda: None  # there is nothing to cancel
        try:
            self._cancel = host.current().infer(call, self._put)
        except EdgeServeError as error:
            self._put(Reply(error=error), True)

    def _put(self, reply: Reply, final: bool) -> None:
        self._queue.put((reply, final))
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()

    def next(self) -> InferenceResponse:
        """Wait for the next response. Not to be called once `finished`."""
        reply, self.finished = self._queue.get()
        return InferenceResponse.of(reply, self._gpu)

    def cancel(self) -> None:
        """Cancel the call. The last response still comes."""
        if not self.finished:
            self._cancel()


class ResponseIterator:
    """The responses of a call with `decoupled=True`. Iterating again starts from the first."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._seen = [replies.next()]
        self._next = 0

    def __iter__(self) -> ResponseIterator:
        if self._replies.finished and self._next >= len(self._seen):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._next >= len(self._seen):
            if self._replies.finished:
                raise StopIteration("Iteration is done for the responses.")
            self._seen.append(self._replies.next())
        self._next += 1
        return self._seen[self._next - 1]

    def cancel(self) -> None:
        """Ask the called model to stop; the iteration ends when it does."""
        self._replies.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_replies"):  # no further response will be read
            self._replies.cancel()


def ask(call: host.ModelCall, gpu: int = -1) -> InferenceResponse | ResponseIterator:
    """Call a model. Return the answer, or an iterator over the answers, after the first. `gpu` as for `Replies`."""
    replies = Replies(call, gpu=gpu)
    return ResponseIterator(replies) if call.decoupled else replies.next()


def ask_async(call: host.ModelCall, gpu: int = -1) -> asyncio.Future[InferenceResponse | ResponseIterator]:
    """Call a model at once. Return a future of the running loop; its cancellation cancels the call."""
    import asyncio  # the model runs an event loop, so it is loaded

    loop = asyncio.get_running_loop()
    future: asyncio.Future[InferenceResponse | ResponseIterator] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(ResponseIterator(replies) if call.decoupled else replies.next())

    def on_first() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the model is being unloaded
            loop.call_soon_threadsafe(settle)

    replies = Replies(call, on_first, gpu)
    future.add_done_callback(lambda done: replies.cancel() if done.cancelled() else None)
    return future


ResponseIterator.__module__ = MODULE
