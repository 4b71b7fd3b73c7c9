"""One client's gRPC connection: a socket on the event loop, the HTTP/2 state machine, a send queue (ADR 7 and 12).

A connection has no tasks and no timers: the server's sweep calls `check_time`. The answers of one turn of the loop are
flushed together at its end. An answer after which no call is open is flushed at once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http2.connection import Http2
from edge_serve.protocol.http2.frames import Code, ConnectionFault
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.protocol.http2.streams import PER_TURN
from edge_serve.transport.door.body_memory import ReaderPace
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.call_head import CallHead, HeadInterpreter
from edge_serve.transport.grpc.door_state import GrpcDoorState
from edge_serve.transport.grpc.keepalive import Due, Keepalive
from edge_serve.transport.sockets.client_connection import ClientConnection, ConnectionPhase, StreamSocket
from edge_serve.transport.sockets.send_queue import AT_ONCE, SendQueue
from edge_serve.transport.v2.routes import RouteGroup

log = logging.getLogger(__name__)

#: payloads of the server's PINGs: for keepalive, and after GOAWAY
_ARE_YOU_THERE, _LEAVING = b"edgeping", b"edgebye."


class GrpcOutput(SendQueue):
    """Send queue that schedules its own flush."""

    __slots__ = ("_wanted",)

    def __init__(self, sock: StreamSocket, wanted: Callable[[], None]) -> None:
        SendQueue.__init__(self, sock)
        self._wanted = wanted

    def push(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None:
        SendQueue.push(self, parts, size, on_sent)
        self._wanted()

    #: push without a flush, for a caller that flushes
    add = SendQueue.push


class GrpcConnection(ClientConnection):
    """One client's connection. Implements `StreamHost` for HTTP/2."""

    __slots__ = (
        "_calls", "_continues", "_counted", "_draining_ns", "_http2", "_in_flight", "_interpreter", "_keepalive",
        "_late", "_out", "_pace", "_paces", "_scheduled", "_stopping", "_table", "shared",
    )  # fmt: skip

    def __init__(self, sock: StreamSocket, shared: GrpcDoorState, interpreter: HeadInterpreter) -> None:
        self.shared = shared
        self._interpreter = interpreter
        self._out = GrpcOutput(sock, self._schedule)
        self._http2 = Http2(self, self._out, shared.clock, shared.limits.unsent)
        self._table = self._http2.table
        now_ns = shared.clock.now_ns()
        self._keepalive = Keepalive(shared.keepalive, now_ns, random.uniform(0.9, 1.1))
        #: a flush is scheduled
        self._scheduled = False
        #: `_continue` is scheduled
        self._continues = False
        #: calls with bytes that wait for the next turn of the loop, in the order of their turns
        self._late: dict[GrpcCall, None] = {}
        self._draining_ns: int | None = None
        #: the server stops, so conversations end, which a connection's age does not do to them
        self._stopping = False
        #: calls that wait, each with its mark and since when (see `_is_late`)
        self._calls: dict[int, tuple[object, int]] = {}
        #: the speed of the client, and of each call whose window it keeps closed
        self._pace = self._make_pace()
        self._paces: dict[int, ReaderPace] = {}
        self._in_flight = shared.sharing.in_flight
        #: of the calls in flight, so many are counted for this connection
        self._counted = 0
        super().__init__(sock, shared.loop)
        self._http2.start()

    # ---- events from the loop ------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        http2 = self._http2
        shared = self.shared
        try:
            place = http2.place()
            received = self._sock.recv_into(shared.view if place is None else place)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError):
            self.close()
            return
        if received == 0:  # HTTP/2 connections are not half-closed
            self.close()
        elif self._phase is ConnectionPhase.OPEN:
            scheduled, self._scheduled = self._scheduled, True
            try:
                if place is None:
                    http2.receive(bytes(shared.view[:received]))
                else:
                    http2.receive_placed(received)
            except Exception:
                self._fail()
            self._scheduled = scheduled
            self._flush()

    def _continue(self) -> None:
        """Read what waited for this turn of the loop: bytes of calls, then frames."""
        self._continues = False
        if self._phase is not ConnectionPhase.OPEN or self._out.pending > self.shared.limits.stalled:
            return  # `_flush` calls this again once the client has read
        table, late = self._table, self._late
        scheduled, self._scheduled = self._scheduled, True
        try:
            table.turn = PER_TURN
            for call in list(late):
                if table.turn <= 0:
                    break
                del late[call]
                call.read_on()
            if table.unread:
                self._http2.receive(b"")
        except Exception:
            self._fail()
        self._scheduled = scheduled
        self._flush()
        if late:
            self._continue_soon()

    def _continue_soon(self) -> None:
        if not self._continues:
            self._continues = True
            self.loop.call_soon(self._continue)

    def _fail(self) -> None:
        log.exception("a gRPC connection failed")
        self._table.fail(ConnectionFault(Code.INTERNAL_ERROR, "the server failed, its log says why"))

    def _on_writable(self) -> None:
        self._flush()

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._phase is ConnectionPhase.CLOSED:
            return
        table = self._table
        streams = len(table.open)
        if streams != self._counted:
            self._in_flight.now += streams - self._counted
            self._counted = streams
        out, sender = self._out, table.sender
        try:
            out.flush()
            end = out.taken + AT_ONCE
            while not out.pending and sender.waiting and out.taken < end:
                sender.pump()
                if not out.pending:
                    break
                out.flush()
        except OSError:
            self.close()
            return
        pending = out.pending
        if out.taken >= end and not pending and sender.waiting:  # a fast reader: other connections get their turn first
            self._schedule()
        if pending or self._writing or table.unread or not self._reading:
            self._set_writing(pending > 0)
            if self._phase is ConnectionPhase.OPEN:
                limits = self.shared.limits
                reads = pending <= (limits.stalled if self._reading else limits.unsent)
                self._set_reading(reads and not table.unread)
                if reads and (table.unread or self._late):
                    self._continue_soon()
        if not pending and self._table.over and self._phase is ConnectionPhase.OPEN:
            self._linger()

    # ---- for calls -----------------------------------------------------------------------------------------------

    def add(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None) -> None:
        """Push bytes without a flush; `flush_answer` follows."""
        self._out.add(parts, size, on_sent)

    def flush_answer(self) -> None:
        """Flush the bytes of `add`: now if no call is open, otherwise at the end of this turn of the loop."""
        if not self._scheduled:
            if self._table.open:
                self._schedule()
            else:
                self._flush()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush_scheduled)

    def read_later(self, call: GrpcCall) -> None:
        """Call `call.read_on` in the next turn of the loop, or when the client has read enough."""
        self._late[call] = None
        self._continue_soon()

    def count_denied(self) -> None:
        """Count a call that access control denied."""
        if self._interpreter.gate is not None:
            self._interpreter.gate.count_denied()

    # ---- events from HTTP/2 --------------------------------------------------------------------------------------

    def open_stream(self, stream_id: int, head: StreamHead) -> GrpcCall:
        asked = head.meaning
        if type(asked) is not CallHead:
            asked = self._interpreter.interpret(head)
        in_flight = self._in_flight
        full = in_flight.now + len(self._table.open) - self._counted >= in_flight.limit
        if full and asked.method is not None and asked.method.group is not RouteGroup.HEALTH:
            asked = CallHead(refusal=in_flight.refuse())
        return GrpcCall(self._table, self, stream_id, head.content_length, asked)

    def on_ping(self) -> None:
        if self._keepalive.on_ping(self.shared.clock.now_ns(), len(self._table.open), self._http2.exchanged):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too_many_pings")

    def on_pong(self, payload: bytes) -> None:
        if payload == _LEAVING:
            self._refuse_new()

    def on_idle(self) -> None:
        if self._draining_ns is None:
            self._table.close_all()  # every call from before the last GOAWAY is answered
            self._schedule()

    # ---- for the server ------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """A call is unanswered, or its answer is not sent."""
        table = self._table
        return self._phase is ConnectionPhase.OPEN and bool(table.open or table.unread or self._out.pending)

    @property
    def idle_since_ns(self) -> int | None:
        """See `eviction.Idle`."""
        return None if self.owes else self._keepalive.heard_ns(self._http2.received)

    def clear_heads(self) -> None:
        """Interpret the heads of the next calls again, because access has changed."""
        self._http2.clear_heads()

    def drain(self) -> None:
        """Answer the calls that are open or on their way, and end conversations that need no answer; then close."""
        if self._phase is not ConnectionPhase.OPEN or self._stopping:
            return
        self._stopping = True
        if self._table.draining and self._draining_ns is None:
            self._finish_conversations()
        else:
            self._go_away()

    def _go_away(self) -> None:
        """Ask the client to open no more calls, and learn by a PING when it has read that."""
        if self._phase is ConnectionPhase.OPEN and not self._table.draining and not self._table.over:
            self._draining_ns = self.shared.clock.now_ns()
            self._http2.drain()
            self._http2.ping(_LEAVING)

    def retire(self, waited: float) -> None:
        """See `ClientConnection`: send GOAWAY, and answer the calls that the client opens until it reads that."""
        self.drain()

    def _refuse_new(self) -> None:
        """Refuse new calls, after the client has read GOAWAY, or has had the time to."""
        if self._draining_ns is not None:
            self._draining_ns = None
            self._http2.refuse_new()
            if self._stopping:
                self._finish_conversations()
            if not self._table.open:
                self.on_idle()

    def _finish_conversations(self) -> None:
        """End the conversations: all messages that the client sent before it read GOAWAY have arrived."""
        for call in list(self._table.open.values()):
            assert isinstance(call, GrpcCall), "open_stream makes no others"
            call.finish_when_answered()

    def check_time(self, now_ns: int) -> None:
        """Check the timeouts and the keepalive; close the connection if it has waited without progress for too long."""
        limits, table, http2 = self.shared.limits, self._table, self._http2
        leased = self._out.is_leased or any(one.sendable > 0 and one.is_leased for one in table.open.values())
        is_slow = self._pace.is_slow(self._out.taken, now_ns, leased=leased)
        if self._is_late(*self._find_wait(), now_ns) or is_slow:
            self.close()
            return
        if self._phase is not ConnectionPhase.OPEN or table.over:
            return
        if self._draining_ns is not None and now_ns - self._draining_ns >= limits.leave_timeout * 1e9:
            self._refuse_new()
        self._check_calls(now_ns)
        calls, sent = len(table.open), table.sender.sent
        match self._keepalive.check(now_ns, calls, http2.received, sent, reading=self._reading):
            case Due.PING:
                http2.ping(_ARE_YOU_THERE)
            case Due.DRAIN:
                self._go_away()
            case Due.CLOSE:
                self.close()

    def _on_closed(self) -> None:
        self._table.close_all()
        self._late.clear()
        self._out.discard()
        self._in_flight.now -= self._counted
        self.shared.gone(self)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _find_wait(self) -> tuple[object, float]:
        """Return a mark of what the connection waits for, and the timeout in seconds."""
        limits = self.shared.limits
        if self._phase is ConnectionPhase.LINGER:
            return "linger", limits.linger_timeout
        if self._out.pending:
            return self._out.taken, limits.write_timeout
        if not self._http2.greeted:
            return "greeting", limits.greeting_timeout
        return None, float("inf")

    def _make_pace(self) -> ReaderPace:
        shared = self.shared
        return ReaderPace(shared.sharing.memory, shared.limits.body_rate, shared.limits.write_timeout)

    def _check_calls(self, now_ns: int) -> None:
        known, limits = self._calls, self.shared.limits
        waiting: dict[int, tuple[object, int]] = {}
        paces, self._paces = self._paces, {}
        for call in list(self._table.open.values()):
            assert isinstance(call, GrpcCall), "open_stream makes no others"
            late = call.overdue(now_ns, limits.body_rate, limits.memory_wait)
            if late is not None:
                call.fail(late)
                continue
            if call.sendable <= 0 and call.is_leased:
                self._paces[call.id] = pace = paces.get(call.id) or self._make_pace()
                if pace.is_slow(call.progress, now_ns, leased=True):
                    call.time_out("read")
                    continue
            mark = call.waits_for
            if mark is None:
                continue
            before, since_ns = known.get(call.id, (None, now_ns))
            waiting[call.id] = (mark, now_ns if before != mark else since_ns)
            waited = now_ns - waiting[call.id][1]
            if waited >= (limits.message_timeout if mark[0] == "message" else limits.write_timeout) * 1e9:
                call.time_out(mark[0])
        self._calls = waiting
