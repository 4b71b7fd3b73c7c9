"""Compresses the messages of a call, in order: small ones in the event loop, large ones in a thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

from edge_serve.aio.offload import offload
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.wire import PREFIX
from edge_serve.records import entity, slotted

#: bytes of a message that is compressed in the loop
SMALL = 64 * 1024


@slotted
class _Job:
    """A message to compress. Its parts do not change until `on_sent` is called."""

    parts: Sequence[Buffer]
    size: int
    on_sent: Callable[[], None] | None


@entity
class Deflater:
    """Compresses the messages of one call.

    Attributes:
        send: sends the flag and the bytes of a message; returns how many of them wait for the client.
        on_taken: called with the bytes that no longer wait, after `write` has reported them as waiting, and with the
            number of messages that end with them: see `Conversation.on_taken`.
        on_fault: called when a message could not be compressed (no memory); it and the rest are discarded.
    """

    encoding: str
    send: Callable[[int, bytes], int]
    on_taken: Callable[[int, int], None]
    on_fault: Callable[[], None]
    _jobs: deque[_Job] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None
    _last: Callable[[], None] | None = None
    _discarded: bool = False

    def write(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None) -> int:
        """Send a message, and return how many bytes of it wait."""
        if self._task is None and size <= SMALL:
            flag, message = grpc_wire.deflate(b"".join(parts), self.encoding)
            if on_sent is not None:
                on_sent()
            return self.send(flag, message)
        self._jobs.append(_Job(parts, size, on_sent))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return PREFIX.size + size

    def finish(self, last: Callable[[], None]) -> None:
        """Call `last` after the messages so far; no message follows."""
        if self._task is None:
            last()
        else:
            self._last = last

    def discard(self) -> None:
        """Discard the messages that are not sent."""
        self._discarded = True

    async def _run(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            flag, message = 0, b""
            if not self._discarded:
                try:
                    flag, message = await offload(_deflate, job.parts, self.encoding)
                except Exception:
                    self._discarded = True
                    self.on_fault()
            self._jobs.popleft()
            if job.on_sent is not None:
                job.on_sent()
            if not self._discarded:
                waiting = self.send(flag, message)
                self.on_taken(PREFIX.size + job.size - waiting, 0 if waiting else 1)
        self._task = None
        if self._last is not None:
            self._last()


def _deflate(parts: Sequence[Buffer], encoding: str) -> tuple[int, bytes]:
    return grpc_wire.deflate(b"".join(parts), encoding)
