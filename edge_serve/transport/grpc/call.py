"""One gRPC call: hands the messages of its stream to a method, and sends the answer.

Large messages are inflated, deflated, and prepared in a thread, because that would block the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import start_task
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.wire import PREFIX, MessageTooLarge
from edge_serve.protocol.http2.frames import Code
from edge_serve.protocol.http2.streams import StreamTable
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.grpc.call_head import CallHead, DeadlineExceeded, HeadRefused
from edge_serve.transport.grpc.deflater import SMALL, Deflater
from edge_serve.transport.grpc.messages import Message, MessagePlace, MessageStream
from edge_serve.transport.grpc.methods import Conversation, Prepare, Streaming, Unary

log = logging.getLogger(__name__)

#: bytes to which a message may grow when the event loop inflates it
_SMALL_INFLATED = 256 * 1024
_PREFIX_SIZE = PREFIX.size

FAULT = Internal("the server failed to handle this request, its log says why")


class CallConnection(Protocol):
    """The part of `GrpcConnection` that calls use."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def memory(self) -> BodyMemory: ...
    @property
    def inflating(self) -> asyncio.Lock: ...

    def add(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None) -> None:
        """Push bytes without a flush; `answered` follows."""

    def count_denied(self) -> None:
        """Count a call that access control denied."""

    def answered(self) -> None:
        """Flush the bytes of `add`, now or at the end of this turn of the loop."""


class GrpcCall(MessageStream):
    """A call: its request messages, its answer, and its deadline.

    Attributes:
        asked: its interpreted head.
        on_cancelled: called when the client cancels the call, or its deadline passes.
    """

    __slots__ = (
        "_conversation",
        "_deflater",
        "_line",
        "_message",
        "_started",
        "_steps",
        "_timer",
        "asked",
        "on_cancelled",
    )

    def __init__(
        self, table: StreamTable, line: CallConnection, stream_id: int, due: int, asked: CallHead, max_message: int
    ) -> None:
        MessageStream.__init__(self, table, stream_id, due, max_message)
        self.asked = asked
        self.on_cancelled: Callable[[], None] | None = None
        self._line = line
        self._conversation: Conversation | None = None
        self._started = False
        self._deflater: Deflater | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: the only message of a unary call; released with the call, unless a request takes over its lease
        self._message: Message | None = None
        #: steps that wait for a thread to inflate or prepare a message; None = no thread works for this call
        self._steps: deque[Callable[[], None]] | None = None

    # ---- events from the connection ------------------------------------------------------------------------------

    def on_open(self) -> None:
        asked = self.asked
        refusal = asked.refusal
        if refusal is not None:
            if asked.denied:
                self._line.count_denied()
            if isinstance(refusal, HeadRefused):
                self._end_with(partial(grpc_wire.refusal, self.id, refusal.status))
            else:
                self.fail(refusal)
            return
        if asked.timeout_ns:
            self._timer = self._line.loop.call_later(asked.timeout_ns / 1e9, self._on_deadline)
        method = asked.method
        if type(method) is Streaming:
            self._guarded(partial(self._open, method))

    def take(self, message: Message, compressed: int) -> None:
        if compressed and not self.closed:
            self._in_turn(partial(self._inflate, message))
        elif message.offset < 0 and len(message.data) > SMALL and self._prepares is not None:
            self._in_turn(partial(self._prepare, message))
        else:
            self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        if self._conversation is not None:
            self._in_turn(partial(self._hand_on, message))
        elif self.finished:
            message.release()
        elif self._message is None:
            self._message = message
        else:
            message.release()
            self.fail(Internal("a unary call has one message, more than one came"))

    @property
    def memory(self) -> BodyMemory:
        return self._line.memory

    def find_place(self, beginning: bytes, length: int) -> MessagePlace | None:
        method = self.asked.method
        if isinstance(method, (Unary, Streaming)) and method.place is not None:
            return method.place(beginning, length)
        return None

    def on_end(self) -> None:
        if self.midway:
            self.fail(Internal("the stream ends within a message"))
        elif self._steps is not None or self._conversation is not None:
            self._in_turn(self._hand_on_end)
        else:
            self._answer()

    def on_gone(self) -> None:
        self._drop()
        if self._deflater is not None:
            self._deflater.drop()
        self._end_conversation()
        on_cancelled, self.on_cancelled = self.on_cancelled, None
        if on_cancelled is not None:
            on_cancelled()

    def on_taken(self, size: int) -> None:
        if self._conversation is not None:
            self._conversation.on_taken(size)

    @property
    def waits_for(self) -> tuple[str, object] | None:
        """Return "read" or "message" if the client must read or send, with a value that changes with its progress."""
        if self.queue is not None and self._conversation is None:
            return "read", (len(self.queue), self.queue[0].left)
        if not self.ended and not self.waits and (self.midway or self._conversation is None):
            return "message", (self.receivable >> 10, self.filled >> 10)
        return None

    def give_up(self, on: str) -> None:
        """End the call because the client made no progress `on` reading, or on its message, for too long."""
        if on == "message":
            self.fail(DeadlineExceeded("the request was not complete after a time without progress"))
        else:
            self.table.reset(self, Code.CANCEL)

    # ---- the answer ----------------------------------------------------------------------------------------------

    def reply(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None:
        """Answer a unary call with a message of `size` bytes. `on_sent` is called when the parts are no longer read,
        even if the call fails."""
        if self.closed:
            if on_sent is not None:
                on_sent()
            return
        self.on_cancelled = None
        table = self.table
        if not self.asked.deflate and table.sender.takes(self, size + _PREFIX_SIZE):
            line = self._line
            whole = size + grpc_wire.WHOLE_OVERHEAD
            line.add((grpc_wire.before(self.id, size), *parts, grpc_wire.ok(self.id)), whole, on_sent)
            if self._timer is not None or self._message is not None:
                self._drop()
            table.done(self)
            line.answered()
            return
        self.write(parts, size, on_sent)
        self.finish()

    def write(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> int:
        """Send a message, and return how many bytes of it wait for the client: 0 or all of them. `on_taken` is
        called when they no longer wait. `on_sent` as in `reply`."""
        if self.closed:
            if on_sent is not None:
                on_sent()
            return 0
        if not self.asked.deflate:
            return self._send(0, parts, size, on_sent)
        if self._deflater is None:
            self._deflater = Deflater(
                self.asked.deflate,
                lambda flag, message: self._send(flag, (message,), len(message)),
                self.on_taken,
                self._fail_deflating,
            )
        return self._deflater.write(parts, size, on_sent)

    def finish(self) -> None:
        """End the call with status OK; no message follows."""
        if not self.closed:
            self._end_with(self._ok)

    def fail(self, error: EdgeServeError) -> None:
        """End the call with an error, after the messages that still wait."""
        if not self.closed and not self.finished:
            self._end_with(partial(self._fault, error))

    def check_change(self) -> None:
        """Check that the client may change settings; methods call it before they do.

        Raises:
            EdgeServeError: the client may only read them.
        """
        if self.asked.unchangeable is not None:
            self._line.count_denied()
            raise self.asked.unchangeable

    def cut(self, error: EdgeServeError) -> None:
        """End the call with an error at once; discard the messages that still wait."""
        self.table.sender.drop(self)
        if self._deflater is not None:
            self._deflater.drop()
        self.fail(error)

    def _send(self, flag: int, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> int:
        self._start()
        prefix = PREFIX.pack(flag, size)
        size += _PREFIX_SIZE
        return 0 if self.table.sender.send(self, (prefix, *parts), size, on_sent) else size

    def _start(self) -> None:
        if not self._started:
            self._started = True
            data = grpc_wire.head(self.id, self.asked.deflate)
            self.table.sender.output.push((data,), len(data))

    def _ok(self) -> bytes:
        self._start()
        return grpc_wire.ok(self.id)

    def _fault(self, error: EdgeServeError) -> bytes:
        return grpc_wire.fault(self.id, error.grpc_code, error.message, started=self._started)

    def _fail_deflating(self) -> None:
        """Send an error in place of the trailers that wait for the message."""
        log.exception("a gRPC call failed")
        self._end_with(partial(self._fault, FAULT))

    def _end_with(self, trailers: Callable[[], bytes]) -> None:
        self.finished = True
        self._drop()
        self.on_cancelled = None
        if self._deflater is None:
            self.table.sender.finish(self, trailers())
        else:
            self._deflater.then(partial(self._end_deflated, trailers))
        self._end_conversation()

    def _end_deflated(self, trailers: Callable[[], bytes]) -> None:
        if not self.closed:
            self.table.sender.finish(self, trailers())

    def _end_conversation(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.on_gone()

    def _drop(self) -> None:
        """Release what only an open call needs: timer, memory, message."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.drop()
        message, self._message = self._message, None
        if message is not None:
            message.release()

    def _on_deadline(self) -> None:
        self._timer = None
        on_cancelled = self.on_cancelled
        self.fail(DeadlineExceeded("Deadline Exceeded"))
        if on_cancelled is not None:
            on_cancelled()

    # ---- the request ---------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        message, method = self._message, self.asked.method
        if message is None:
            self.fail(Internal("a unary call has one message, none came"))
            return
        assert type(method) is Unary, "others have a conversation"
        if method.place is not None:
            self._message = None
        try:
            method.answer(self, message)
        except EdgeServeError as error:
            self.fail(error)
        except Exception:
            self.fail_by_us()

    def _open(self, method: Streaming) -> None:
        self._conversation = method.open(self)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step. An exception in it fails this call, and not the connection."""
        try:
            step()
        except Exception:
            self.fail_by_us()

    def fail_by_us(self) -> None:
        """Fail the call because of the current exception, and log that."""
        log.exception("a gRPC call failed")
        self.fail(FAULT)

    def _hand_on(self, message: Message) -> None:
        if self._conversation is not None:
            self._conversation.on_message(message)
        else:
            message.release()

    def _hand_on_end(self) -> None:
        if self._conversation is not None:
            self._conversation.on_end()
        elif not self.closed:
            self._answer()

    def _in_turn(self, step: Callable[[], None]) -> None:
        """Run a step after those that wait for a thread."""
        if self._steps is None:
            self._guarded(step)
        else:
            self._steps.append(step)

    def _inflate(self, message: Message) -> None:
        data, encoding = message.data, self.asked.encoding
        if not (self.closed or self.finished or encoding):
            self.fail(Internal("a compressed message, but no grpc-encoding says how"))
        if self.closed or self.finished:
            message.release()
            return
        if len(data) <= SMALL:
            try:
                inflated = grpc_wire.inflate(data, encoding, min(_SMALL_INFLATED, self.max_message))
            except MessageTooLarge:
                pass
            except EdgeServeError as error:
                message.release()
                self.fail(error)
                return
            else:
                message.release()
                self.take(Message(inflated), 0)
                return
        self._steps = self._steps or deque()
        start_task(self._inflate_elsewhere(message, encoding), "inflate")

    async def _inflate_elsewhere(self, compressed: Message, encoding: str) -> None:
        message: Message | None = None
        try:
            async with self._line.inflating:  # one at a time, because their inflated sizes are unknown
                data = await offload(grpc_wire.inflate, compressed.data, encoding, self.max_message)
                compressed.release()
                if not self.closed and not self.finished:
                    message = self.charged(data)
        except EdgeServeError as error:
            self.fail(error)
        except Exception:
            self.fail_by_us()
        finally:
            compressed.release()
        self._end_step(None if message is None else partial(self.take, message, 0))

    @property
    def _prepares(self) -> Prepare | None:
        method = self.asked.method
        return method.prepare if isinstance(method, (Unary, Streaming)) else None

    def _prepare(self, message: Message) -> None:
        prepare = self._prepares
        if self.closed or self.finished or prepare is None:
            message.release()
            return
        self._steps = self._steps or deque()
        start_task(self._prepare_elsewhere(prepare, message), "prepare a large message")

    async def _prepare_elsewhere(self, prepare: Prepare, message: Message) -> None:
        try:
            await prepare(self.asked, message)
        except Exception:
            message.release()
            self.fail_by_us()
            self._end_step(None)
        else:
            self._end_step(partial(self._hand_over, message))

    def _end_step(self, then: Callable[[], None] | None) -> None:
        """Continue after the work of a thread: run `then`, and the steps that waited."""
        steps, self._steps = self._steps or deque(), None
        if then is not None:
            steps.appendleft(then)
        while steps:
            if self._steps is not None:
                self._steps.extend(steps)
                return
            self._guarded(steps.popleft())
