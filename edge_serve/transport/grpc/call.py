"""One gRPC call: hands the messages of its stream to a method, and sends the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import Room
from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.protocol.grpc import response as grpc_response
from edge_serve.protocol.grpc.wire import PREFIX
from edge_serve.protocol.http2.frames import Code
from edge_serve.protocol.http2.stream import INITIAL_WINDOW, Http2Stream
from edge_serve.protocol.http2.streams import StreamTable
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import InFlight
from edge_serve.transport.grpc.call_head import CallHead, Conversation, DeadlineExceeded, HeadRefused, Prepare
from edge_serve.transport.grpc.deflater import SMALL, Deflater
from edge_serve.transport.grpc.inflater import Inflater
from edge_serve.transport.grpc.messages import PREFIX_SIZE, UNANSWERED, Message, MessageReader

if TYPE_CHECKING:
    from edge_serve.transport.grpc.connection import GrpcConnection

log = logging.getLogger(__name__)

FAULT = Internal("the server failed to handle this request, its log says why")


class GrpcCall(Http2Stream):
    """A call: its request messages, its answer, and its deadline.

    Attributes:
        asked: its interpreted head.
        finished: the end of the answer is written, though it may wait to be sent. Further messages are discarded.
        paused: the reasons for which no message is taken now, as bits; 0 = messages are taken.
        on_cancelled: called when the client cancels the call, or its deadline passes.
    """

    __slots__ = (
        "_connection", "_conversation", "_deflater", "_inflater", "_message", "_reader", "_started",
        "_timer", "asked", "finished", "on_cancelled", "paused",
    )  # fmt: skip

    def __init__(
        self, table: StreamTable, connection: GrpcConnection, stream_id: int, due: int, asked: CallHead
    ) -> None:
        Http2Stream.__init__(self, table, stream_id, due)
        self.finished = False
        self.paused = 0
        #: assembles messages that do not arrive in one piece; None = none of them has
        self._reader: MessageReader | None = None
        self.asked = asked
        self.on_cancelled: Callable[[], None] | None = None
        self._connection = connection
        self._conversation: Conversation | None = None
        self._started = False
        self._deflater: Deflater | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: the only message of a unary call; released with the call, unless a request takes over its lease
        self._message: Message | None = None
        #: inflates and prepares messages, in order; None = no message has asked for that
        self._inflater: Inflater | None = None

    # ---- events from the connection ------------------------------------------------------------------------------

    def on_open(self) -> None:
        asked = self.asked
        refusal = asked.refusal
        if refusal is not None:
            if asked.denied:
                self._connection.count_denied()
            if isinstance(refusal, HeadRefused):
                self._end_with(partial(grpc_response.build_refusal, self.id, refusal.status))
            else:
                self.fail(refusal)
            return
        if asked.timeout_ns:
            self._timer = self._connection.loop.call_later(asked.timeout_ns / 1e9, self._on_deadline)
        if asked.method is not None and asked.method.open is not None:
            self.guard(partial(self._open, asked.method.open))

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        reader = self._reader
        if stop - start >= PREFIX_SIZE and not self.paused and (reader is None or not reader.midway):
            flag, length = PREFIX.unpack_from(data, start)
            if start + PREFIX_SIZE + length == stop and length < INLINE_BYTES and flag < 2:  # nearly always
                self.take(Message(data[start + PREFIX_SIZE : stop]), flag)
                return
        if self.finished:
            return
        if reader is None:
            reader = self._reader = MessageReader(self, self.max_message)
        reader.read(data, start, stop)

    def place(self, size: int) -> memoryview | None:
        return None if self._reader is None else self._reader.place(size)

    def on_placed(self, size: int) -> None:
        assert self._reader is not None, "it has returned the memory"
        self._reader.on_placed(size)

    def overdue(self, now_ns: int, rate: int, wait: float) -> EdgeServeError | None:
        """See `Claim.check_time`."""
        return None if self._reader is None else self._reader.overdue(now_ns, rate, wait)

    def take(self, message: Message, compressed: int) -> None:
        """Handle a complete message."""
        self.table.turn -= 1
        if compressed and not self.closed:
            self._open_inflater().inflate(message)
        elif message.offset < 0 and len(message.data) > SMALL and (prepare := self._prepare) is not None:
            self._open_inflater().prepare(message, partial(prepare, self.asked, message))
        else:
            self.hand_over(message)

    def hand_over(self, message: Message) -> None:
        """Pass a complete message, inflated and prepared, to the method."""
        if self.closed or self.finished:  # perhaps while a thread worked on it
            message.release()
        elif self._conversation is not None:
            self._in_turn(partial(self._hand_on, message))
        elif self._message is None:
            self._message = message
        else:
            message.release()
            self.fail(Internal("a unary call has one message, more than one came"))

    @property
    def memory(self) -> BodyMemory:
        """The memory budget of all doors."""
        return self._connection.shared.sharing.memory

    @property
    def max_message(self) -> int:
        """Bytes of the longest message that the call takes, both as sent and inflated."""
        most, method = self._connection.shared.max_message, self.asked.method
        return most if method is not None and method.large else min(most, SMALL_BYTES)

    @property
    def in_flight(self) -> InFlight:
        """The unanswered requests of all doors, this call among them."""
        return self._connection.shared.sharing.in_flight

    def find_place(self, beginning: bytes, length: int) -> Room | None:
        """Return memory for a message; None = ordinary memory.

        Raises:
            EdgeServeError: the message is refused.
        """
        method = self.asked.method
        return None if method is None or method.place is None else method.place(beginning, length)

    def on_end(self) -> None:
        reader = self._reader
        if reader is not None and reader.midway:
            if not reader.defer(self.on_end):
                self.fail(Internal("the stream ends within a message"))
        elif self._conversation is not None or (self._inflater is not None and self._inflater.busy):
            self._in_turn(self._hand_on_end)
        else:
            self._answer()

    def pause(self, reason: int = UNANSWERED) -> None:
        """Take no further message, and do not reopen the client's window, until `resume` for the same reason.

        A message that is arriving is still taken.
        """
        self.paused |= reason

    def resume(self, reason: int = UNANSWERED) -> None:
        """Take messages again, from the next turn of the event loop on."""
        if self.paused & reason:
            self.paused &= ~reason
            if not self.paused and not self.closed:
                self.read_later()

    def read_later(self) -> None:
        """Call `read_on` in the next turn of the event loop."""
        self._connection.read_later(self)

    def run_later(self, step: Callable[[], None]) -> None:
        """Run a step in the next turn of the event loop; see `guard`."""
        self._connection.loop.call_soon(self.guard, step)

    def read_on(self) -> None:
        """Read bytes that waited."""
        if self._reader is not None:
            self._reader.read_on()
        else:
            self.reopen()

    def reopen(self) -> None:
        """Reopen the receive window of a conversation that has taken all messages so far."""
        reader = self._reader
        if self._conversation is not None and not self.paused and (reader is None or not reader.waits):
            self.replenish()

    def finish_when_answered(self) -> None:
        """End a conversation with its last answer, because the server stops; other calls end by themselves."""
        reader = self._reader
        if self._conversation is not None and (reader is None or not reader.defer(self.finish_when_answered)):
            self._in_turn(self._finish_answered)

    def on_gone(self) -> None:
        self._release()
        if self._deflater is not None:
            self._deflater.discard()
        self._end_conversation()
        on_cancelled, self.on_cancelled = self.on_cancelled, None
        if on_cancelled is not None:
            on_cancelled()

    def on_taken(self, size: int, messages: int = 1) -> None:
        if self._conversation is not None:
            self._conversation.on_taken(size, messages)

    @property
    def waits_for(self) -> tuple[str, object] | None:
        """Return "read" or "message" if the client must read or send, with a value that changes with its progress."""
        if self.queue is not None and (self._conversation is None or self.is_leased):
            return "read", self.progress
        reader = self._reader
        if self.ended or (reader is not None and reader.waits):
            return None
        if self._conversation is None or (reader is not None and reader.midway):
            return "message", (self.receivable >> 10, 0 if reader is None else reader.filled >> 10)
        return None

    def time_out(self, on: str) -> None:
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
        if not self.asked.deflate and table.sender.reserve(self, size + PREFIX_SIZE):
            connection = self._connection
            start, end = grpc_response.build_reply_start(self.id, size), grpc_response.build_ok(self.id)
            connection.add((start, *parts, end), size + grpc_response.WHOLE_OVERHEAD, on_sent)
            self._release()
            table.close_answered(self)
            connection.flush_answer()
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
            self._end_with(self._build_ok)

    def fail(self, error: EdgeServeError) -> None:
        """End the call with an error, after the messages that still wait."""
        if not self.closed and not self.finished:
            self._end_with(partial(self._build_fault, error))

    def check_change(self) -> None:
        """Check that the client may change settings; methods call it before they do.

        Raises:
            EdgeServeError: the client may only read them.
        """
        if self.asked.unchangeable is not None:
            self._connection.count_denied()
            raise self.asked.unchangeable

    def cut(self, error: EdgeServeError) -> None:
        """End the call with an error at once; discard the messages that still wait."""
        self.table.sender.discard(self)
        if self._deflater is not None:
            self._deflater.discard()
        self.fail(error)

    def _send(self, flag: int, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> int:
        self._start()
        prefix = PREFIX.pack(flag, size)
        size += PREFIX_SIZE
        return 0 if self.table.sender.send(self, (prefix, *parts), size, on_sent) else size

    def _start(self) -> None:
        if not self._started:
            self._started = True
            data = grpc_response.build_head(self.id, self.asked.deflate)
            self.table.sender.output.push((data,), len(data))

    def _build_ok(self) -> bytes:
        self._start()
        return grpc_response.build_ok(self.id)

    def _build_fault(self, error: EdgeServeError) -> bytes:
        return grpc_response.build_fault(self.id, error.grpc_code, error.message, started=self._started)

    def _fail_deflating(self) -> None:
        """Send an error in place of the trailers that wait for the message."""
        log.exception("a gRPC call failed")
        self._end_with(partial(self._build_fault, FAULT))

    def _end_with(self, trailers: Callable[[], bytes]) -> None:
        self.finished = True
        self._release()
        self.on_cancelled = None
        if self._deflater is None:
            self.table.sender.finish(self, trailers())
        else:
            self._deflater.finish(partial(self._end_deflated, trailers))
        self._end_conversation()

    def _end_deflated(self, trailers: Callable[[], bytes]) -> None:
        if not self.closed:
            self.table.sender.finish(self, trailers())

    def _end_conversation(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.on_gone()

    def _release(self) -> None:
        """Release what only an open call needs: timer, memory, message."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.discard()
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
        assert method is not None, "a refused call has ended"
        assert method.answer is not None, "others have a conversation"
        if method.place is not None:
            self._message = None
        try:
            method.answer(self, message)
        except EdgeServeError as error:
            self.fail(error)
        except Exception:
            self.fail_by_us()

    def _open(self, open_method: Callable[[GrpcCall], Conversation]) -> None:
        self._conversation = open_method(self)

    def guard(self, step: Callable[[], None]) -> None:
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
            if self.receivable <= INITIAL_WINDOW // 2:
                self.reopen()
        else:
            message.release()

    def _hand_on_end(self) -> None:
        if self._conversation is not None:
            self._conversation.on_end()
        elif not self.closed:
            self._answer()

    def _finish_answered(self) -> None:
        if self._conversation is not None:
            self._conversation.finish_when_answered()

    def _in_turn(self, step: Callable[[], None]) -> None:
        """Run a step after those that wait for a thread."""
        if self._inflater is None:
            self.guard(step)
        else:
            self._inflater.run(step)

    def _open_inflater(self) -> Inflater:
        if self._inflater is None:
            self._inflater = Inflater(self, self._connection.shared, self.asked.encoding)
        return self._inflater

    @property
    def _prepare(self) -> Prepare | None:
        method = self.asked.method
        return None if method is None else method.prepare
