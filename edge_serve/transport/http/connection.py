"""A client's HTTP connection: a socket on the event loop, a request reader, a send queue, and unanswered requests.

The sockets are registered with `loop.add_reader` and not wrapped in asyncio transports, which copy the bytes that the
kernel does not take at once (before Python 3.12), and forbid sending on their socket. A connection has no task and no
timer; the server's sweep calls `check_time`.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence

from edge_serve.aio.bulk_copy import MOST_AT_ONCE, release_later
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http1.errors import RequestTimeout
from edge_serve.protocol.http1.head import CONTINUE, NO_HEAD
from edge_serve.protocol.http1.reader import RequestReader
from edge_serve.transport.door.body_admission import BodyAdmission
from edge_serve.transport.door.body_memory import ReaderPace
from edge_serve.transport.door.door import FRESH_GRACE, GRACE
from edge_serve.transport.door.exchange import Application
from edge_serve.transport.http.door_state import HttpDoorState, HttpWait
from edge_serve.transport.http.exchange import HttpExchange, Progress, cancel_all
from edge_serve.transport.http.replies import refuse, turn_away
from edge_serve.transport.sockets.client_connection import ClientConnection, ConnectionPhase, StreamSocket
from edge_serve.transport.sockets.half_close import has_disconnected
from edge_serve.transport.sockets.send_queue import SendQueue

_log = logging.getLogger(__name__)

#: Requests of one connection handled in one turn of the event loop.
_REQUESTS_PER_TURN = 32

#: methods that are answered whatever number of requests is in flight: without them a page cannot read a refusal
_ALWAYS = ("GET", "OPTIONS")

_FAILED = "internal error, see the server's log"


class HttpConnection(ClientConnection):
    """Reads requests, passes them to the application, and sends the answers in the order of the requests."""

    __slots__ = (
        "_admission", "_application", "_busy", "_continued", "_draining", "_eof", "_exchanges", "_in_flight", "_out",
        "_pace", "_reader", "_refused", "_scheduled", "_shared", "_stalled", "begun_ns",
    )  # fmt: skip

    def __init__(self, sock: StreamSocket, shared: HttpDoorState, application: Application) -> None:
        self._shared = shared
        self._application = application
        self._admission = admission = BodyAdmission(application, shared.sharing.memory, self)
        self._in_flight = shared.sharing.in_flight
        self._reader = RequestReader(
            shared.parser, shared.buffer, shared.view, admission.place, admission.grow, application.check
        )
        self._out = SendQueue(sock)
        self._pace = ReaderPace(shared.sharing.memory, shared.limits.body_rate, shared.limits.write_timeout)
        self._exchanges: deque[HttpExchange] = deque()
        #: requests are being handled; their answers are sent together afterwards
        self._busy = False
        self._draining = False
        self._refused = False
        #: received requests wait for the next turn of the loop, or until answers have been sent
        self._stalled = False
        self._scheduled = False
        self._eof = False
        #: number of the request that has been answered `100 Continue`
        self._continued = -1
        #: time of the first bytes of the newest request; 0 while nothing is traced
        self.begun_ns = 0
        super().__init__(sock, shared.loop)

    # Called by the event loop

    def _on_readable(self) -> None:
        reader, shared, now_ns = self._reader, self._shared.view, self._shared.now_ns
        now, count = 0 if now_ns is None else now_ns(), reader.count
        if now and not (reader.in_head or reader.in_body):
            self.begun_ns = now
        try:
            into = reader.buffer() if self._phase is ConnectionPhase.OPEN else shared
            received = self._sock.recv_into(into)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError):
            self.close()
            return
        if received == 0:
            self._on_eof()
        elif self._phase is ConnectionPhase.OPEN:
            reader.advance(received)
            self._process()
            if into is shared and received == len(shared) and reader.has_place and self._reading:  # receive the rest
                self._on_readable()
        if now and reader.in_head and reader.count != count:  # the next request arrived with the end of this one
            self.begun_ns = now

    def _on_eof(self) -> None:
        """Cancel the requests of a client that has disconnected; answer one that may only have closed one direction."""
        self._eof = True
        self._set_reading(False)
        self._discard_reading()
        if self._exchanges and has_disconnected(self._sock):
            self._cancel_exchanges()
        if self.owes:
            self._phase = ConnectionPhase.LAST
        else:
            self.close()

    def _on_writable(self) -> None:
        self._resume()

    # Called by exchanges

    def is_last(self, exchange: HttpExchange) -> bool:
        """Return whether this request is the last one, so that the reply says `Connection: close`."""
        return self._phase is not ConnectionPhase.OPEN and self._exchanges[-1] is exchange

    def count(self, status: int) -> None:
        """Count an answer with this status."""
        requests = self._shared.counters.requests
        requests[status] = requests.get(status, 0) + 1

    def send(self, exchange: HttpExchange, parts: Sequence[Buffer], size: int, sent: Callable[[], None] | None) -> bool:
        """Send in the order of the requests. Return False if too many bytes wait for the client."""
        limit = self._shared.limits.unsent
        if self._exchanges[0] is not exchange:
            exchange.held.append((parts, size, sent))
            exchange.held_size += size
            return exchange.held_size <= limit
        self._out.push(parts, size, sent)
        if exchange.progress is Progress.DONE:
            self._finish_front()
        if not self._busy:
            self._resume()
        return self._out.pending <= limit

    def _finish_front(self) -> None:
        """Remove the first exchange, which is answered, and send the answers of those after it."""
        exchanges = self._exchanges
        while True:
            front = exchanges.popleft()
            front.connection = None
            if front.lease is None and len(front.body) > MOST_AT_ONCE:
                release_later(front.body)
                front.body = self._reader.body = b""
            self._in_flight.now -= 1
            if front.claim is not None:
                front.claim.release()
            if front.closes:
                self._phase = max(self._phase, ConnectionPhase.LAST)
                self._cancel_exchanges()
            if not exchanges:
                return
            front = exchanges[0]
            for held in front.held:
                self._out.push(*held)
            front.held.clear()
            if front.progress is not Progress.DONE:
                return

    # Called by the server

    @property
    def owes(self) -> bool:
        """Whether a request is unanswered, or its answer is not sent completely."""
        return bool(self._exchanges) or self._out.pending > 0

    @property
    def idle_since_ns(self) -> int | None:
        """See `eviction.Idle`. Only sweeps read the clock; a wait that began after the last one is the youngest."""
        wait = self._find_wait()
        if wait[0] not in (HttpWait.FRESH, HttpWait.IDLE, HttpWait.HEAD, HttpWait.LINGER):
            return None
        return self._since_ns if wait == self._mark else sys.maxsize

    def drain(self) -> None:
        """Answer the requests that have begun, and one in the socket, then close."""
        self._draining = True
        if self._reading and not self._exchanges:
            self._read_now()
        if self._phase is ConnectionPhase.OPEN and not self._reader.in_body and not self._reader.unread:
            self._phase = ConnectionPhase.LAST
            self._resume()

    def retire(self, waited: float) -> None:
        """Close after the last answer, or after the grace period; see `ClientConnection`."""
        self._draining = True
        if self._exchanges or waited > (GRACE if self._reader.count else FRESH_GRACE):
            self.drain()

    def check_time(self, now_ns: int) -> None:
        """Close the connection, or refuse the request that is being read, after a timeout."""
        self._reader.remove_last()
        claim, limits = self._admission.claim, self._shared.limits
        if claim is not None and self._phase is ConnectionPhase.OPEN:
            late = claim.check_time(self._reader.received, now_ns, limits.body_rate, limits.memory_wait)
            if late is not None:
                self.evict(late)
                return
        if self._pace.is_slow(self._out.taken, now_ns, leased=self._out.is_leased):
            self.close()
            return
        wait = self._find_wait()
        timeout = self._shared.timeouts[wait[0]]
        if not self._is_late(wait, timeout, now_ns):
            return
        if wait[0] in (HttpWait.HEAD, HttpWait.BODY):
            self.evict(RequestTimeout(f"the request was not complete after {timeout:g} seconds without progress"))
        else:
            self.close()

    # Called by the admission of bodies

    def admit(self) -> None:
        self.loop.call_soon(self._process_again)

    def evict(self, error: EdgeServeError) -> None:
        self._refuse(error)
        self._resume()

    def _on_closed(self) -> None:
        self._discard_reading()
        self._admission.close()
        self._cancel_exchanges()
        self._out.discard()
        self._shared.gone(self)

    # Internal

    def _process(self) -> None:
        """Pass the received requests to the application, then send the answers given meanwhile."""
        reader, exchanges, admission, in_flight = self._reader, self._exchanges, self._admission, self._in_flight
        handle = self._application.handle
        turn = _REQUESTS_PER_TURN
        self._busy = True
        self._stalled = True
        try:
            while turn:
                head = reader.next()
                if head is None:
                    self._stalled = reader.rested
                    if admission.waits:  # `admit` continues
                        self._stalled = self._scheduled = True
                    break
                exchange = HttpExchange(self, head, reader.body, reader.lease)
                exchanges.append(exchange)
                in_flight.now += 1
                if admission.claim is not None:
                    exchange.claim = admission.hand_over(reader.lease)
                if not head.keep_alive or (self._draining and not reader.unread):
                    self._phase = ConnectionPhase.LAST
                try:
                    if in_flight.now > in_flight.limit and head.method not in _ALWAYS:
                        exchange.extra = self._application.build_extra(head)
                        turn_away(exchange, in_flight.refuse())
                    elif head.chunked and self._move(exchange):
                        self._stalled = self._scheduled = True  # `_on_moved` continues
                        break
                    else:
                        handle(exchange)
                except Exception:
                    self._fail(exchange)
                if self._phase is not ConnectionPhase.OPEN or self._is_full():
                    break
                turn -= 1
        except EdgeServeError as error:
            self._refuse(error)
        except Exception:
            _log.exception("placing the body of a request failed")
            self._refuse(Internal(_FAILED))
        self._busy = False
        if self._phase is ConnectionPhase.OPEN:
            reader.save_unread()
            if self._reading and not (self._out.pending or self._stalled or self._writing or reader.in_body):
                return  # the usual case: a model has the request
        else:
            self._discard_reading()
        self._resume()

    def _move(self, exchange: HttpExchange) -> bool:
        """Move a large chunked body to the model's memory. Return whether `_on_moved` is called, in a later turn of
        the event loop: the move may be complete at once."""

        def handle_later(lease: Lease | None) -> None:
            self.loop.call_soon(self._on_moved, exchange, lease)

        return self._admission.move(exchange.head, exchange.body, handle_later)

    def _on_moved(self, exchange: HttpExchange, lease: Lease | None) -> None:
        """Handle a request whose large chunked body was moved to the model's memory, then the requests after it."""
        if lease is not None and exchange.connection is None:
            lease.release()
        elif exchange.connection is not None:
            if lease is not None:
                exchange.body, exchange.lease = lease.view[: len(exchange.body)], lease
                self._reader.body = b""
            try:
                self._application.handle(exchange)
            except Exception:
                self._fail(exchange)
        self._process_again()

    def _process_again(self) -> None:
        self._scheduled = False
        if self._phase is ConnectionPhase.OPEN and not self._is_full():
            self._process()
        else:
            self._resume()

    def _resume(self) -> None:
        """Send answers, then resume reading and handling as far as the limits allow."""
        self._flush()
        if self._phase is ConnectionPhase.OPEN:
            if self._reading and not (self._exchanges or self._out.pending or self._stalled or self._reader.in_body):
                return  # the usual case: everything is answered and sent
            full = self._is_full()
            self._set_reading(not full and not self._stalled)
            if self._stalled and not full and not self._scheduled:
                self._scheduled = True
                self.loop.call_soon(self._process_again)
            if self._reader.in_body:
                self._offer_continue()
        elif self._phase is ConnectionPhase.LAST and not self._exchanges and not self._out.pending:
            self._finish()

    def _is_full(self) -> bool:
        limits = self._shared.limits
        return len(self._exchanges) >= limits.pipelined or self._out.pending > limits.unsent

    def _flush(self) -> None:
        out = self._out
        if out.pending:
            try:
                out.flush()
            except OSError:
                self.close()
                return
            if self._phase is ConnectionPhase.CLOSED:
                return
        if self._writing or out.pending:
            self._set_writing(out.pending > 0)
        exchanges = self._exchanges
        if exchanges and exchanges[0].blocked and out.pending <= self._shared.limits.unsent // 2:
            exchanges[0].blocked = False
            on_drained = exchanges[0].on_drained
            if on_drained is not None:
                on_drained()

    def _offer_continue(self) -> None:
        reader = self._reader
        if not self._exchanges and self._continued != reader.count and reader.awaits_continue:
            self._continued = reader.count
            self._out.push((CONTINUE,), len(CONTINUE))
            self._flush()

    def _refuse(self, error: EdgeServeError) -> None:
        """Answer a request that cannot be read, after the answers to those before it, and read no more."""
        self._phase = ConnectionPhase.LAST
        self._refused = True
        head = self._reader.head or NO_HEAD
        self._discard_reading()
        exchange = HttpExchange(self, head, b"", None)
        exchange.extra = self._application.build_extra(head)
        self._exchanges.append(exchange)
        self._in_flight.now += 1
        busy, self._busy = self._busy, True
        refuse(exchange, error, "application/json")
        self._busy = busy

    def _fail(self, exchange: HttpExchange) -> None:
        """Answer a request for which the application raised an exception, which it must not."""
        _log.exception("%s %s failed", exchange.head.method, exchange.head.path)
        if exchange.progress is Progress.WAITING:
            refuse(exchange, Internal(_FAILED), "application/json")
        elif exchange.progress is Progress.STREAMING:
            self.close()

    def _finish(self) -> None:
        """Shut down for writing, and close once the client has read all answers."""
        if not self._eof and (self._refused or self._has_unread()):
            self._linger()
        else:
            self.close()

    def _has_unread(self) -> bool:
        try:
            return self._sock.recv_into(self._shared.view) > 0
        except OSError:  # BlockingIOError: nothing is unread
            return False

    def _discard_reading(self) -> None:
        unused = self._reader.discard()
        if len(unused) > MOST_AT_ONCE:
            release_later(unused)
        self._admission.discard()

    def _cancel_exchanges(self) -> None:
        self._in_flight.now -= len(self._exchanges)
        cancel_all(self._exchanges)

    def _find_wait(self) -> tuple[HttpWait, int]:
        """Return the reason for which the connection waits, and a number that changes with progress."""
        reader = self._reader
        if self._phase is ConnectionPhase.LINGER:
            return HttpWait.LINGER, 0
        if self._out.pending:
            return HttpWait.WRITE, self._out.taken
        if self._admission.waits:
            return HttpWait.ANSWER, 0  # `Claim.check_time` has the time limit
        if reader.in_body and not (self._exchanges and reader.awaits_continue):
            return HttpWait.BODY, reader.received >> 10
        if self._exchanges:
            return HttpWait.ANSWER, 2 * reader.count - len(self._exchanges)  # grows with each request and each answer
        if reader.in_head:
            return HttpWait.HEAD, reader.count
        return (HttpWait.IDLE if reader.count else HttpWait.FRESH), reader.count
