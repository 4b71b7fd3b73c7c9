"""Queue of the responses of one request, which the program takes one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.in_process.arrays import Outputs, outputs_of, release
from edge_serve.messages.infer import InferResponse

#: bytes of responses behind the next one at which the stream fails. Their sender is not paused, as it is over HTTP: a
#: program that sends the same model another request before it takes them would wait for itself, without a timeout
MAX_UNREAD = 16 * 1024 * 1024


class Responses:
    """The responses of one request that the program has not taken."""

    def __init__(self) -> None:
        self.cancel: Callable[[], None] = lambda: None
        #: the size of each response, with its outputs or its error
        self._waiting: deque[tuple[int, Outputs | EdgeServeError]] = deque()
        self._unread = 0
        self._over = self._closed = False
        #: `next` waits, so that responses which arrive before it resumes are not too late
        self._wanted = False
        self._news = asyncio.Event()

    def take(self, response: InferResponse) -> None:
        """Add a response; called by the service."""
        if self._closed or self._over:
            release(response)
            return
        self._over = response.final
        if not response.null:
            size = sum(len(tensor.data) for tensor in response.outputs)
            try:
                self._waiting.append((size, outputs_of(response)))
            except EdgeServeError as error:
                self._waiting.append((size, error))
            self._unread += size
        behind = self._unread - self._waiting[0][0] if self._waiting else 0
        if behind > MAX_UNREAD and not self._over and not self._wanted:
            late = Unavailable(f"more than {MAX_UNREAD} bytes of the stream were not taken in time")
            self._waiting.append((0, late))
            self._over = True
            self.cancel()
        self._news.set()

    async def next(self) -> Outputs | None:
        """Return the outputs of the next response; None at the end.

        Raises:
            EdgeServeError: the response is an error.
        """
        while not self._waiting:
            if self._over:
                return None
            self._news.clear()
            self._wanted = True
            try:
                await self._news.wait()
            finally:
                self._wanted = False
        size, taken = self._waiting.popleft()
        self._unread -= size
        if isinstance(taken, EdgeServeError):
            raise taken
        return taken

    def close(self) -> None:
        """Discard the rest: the caller takes no more responses."""
        self._closed = True
        if not self._over:
            self.cancel()
