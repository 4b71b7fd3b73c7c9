"""One ModelStreamInfer call: many requests and their responses (server src/grpc/stream_infer_handler.cc).

Responses of ordinary models are sent in the order of their requests, those of decoupled models as they arrive. Errors
are messages of the stream. With `triton_grpc_error` the first error of a model ends the stream.

The stream is paused while the client has too many open requests, or leaves too many bytes unread. The senders of
decoupled models are paused, too. Responses of models that cannot pause wait, up to `backlog.MAX_UNREAD` bytes; then the
stream fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Lease
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.models.run.runner import Ticket
from edge_serve.protocol.grpc import response as grpc_response
from edge_serve.protocol.grpc.infer import Unreadable, peek
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.records import entity, slotted
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.sockets import backlog
from edge_serve.transport.sockets.backlog import Backlog
from edge_serve.transport.v2.infer import InferService, ServedVersion, report_unencodable

log = logging.getLogger(__name__)

#: requests that are open, or wait for their turn to be answered, at which the stream is paused
PAUSE_REQUESTS = 256
#: responses up to this many bytes are copied, which releases their slot for the next batch at once
_COPIED = 16 * 1024


#: returns the request in a message, its version, and whether it wants an empty final response
Decode = Callable[[Message, "Mapping[str, str] | None"], tuple[InferRequest, ServedVersion, bool]]


class StreamOverrun(EdgeServeError):
    """The client leaves too many bytes unread."""

    grpc_code = "RESOURCE_EXHAUSTED"


@slotted
class _Written:
    """A message to send."""

    parts: Sequence[Buffer]
    size: int
    lease: Lease | None = None


#: Triton's text
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


@entity
class _Turn:
    """Place of an ordinary model's request in the order of the stream.

    Attributes:
        answered: the answer is complete; message: the answer, None = it has no message.
    """

    answered: bool = False
    message: _Written | None = None


@entity
class _Open:
    """A request without its last response; `turn` is its place in the order, None for a decoupled model."""

    request: InferRequest
    signature: Signature
    wants_final: bool
    turn: _Turn | None
    #: None until the service has accepted or refused the request
    ticket: Ticket | None = None


class InferStream:
    """Answers one ModelStreamInfer call: its open requests, and the order of its responses.

    Args:
        arrive: returns the record of a request that arrives now; None = requests are not traced.
    """

    def __init__(
        self,
        call: GrpcCall,
        service: InferService,
        decode: Decode,
        encoder: GrpcInferEncoder,
        arrive: Callable[[], Arrival] | None,
    ) -> None:
        self._arrive = arrive
        self._call = call
        self._service = service
        self._decode = decode
        self._encoder = encoder
        self._open: set[_Open] = set()
        self._turns: deque[_Turn] = deque()
        #: messages that a thread had, or that were arriving, when the stream was paused
        self._unread: deque[Message] = deque()
        self._reading_on = False
        self._backlog = Backlog()
        #: of its open requests, so many are counted as unanswered beside the call itself
        self._counted = 0
        self._complete = False
        #: the server stops: the stream ends as soon as everything is answered
        self._leaving = False
        self._over = False

    # ---- events from the call ------------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """Handle a request."""
        self._unread.append(message)
        self._read_on()

    def on_end(self) -> None:
        """Handle that no request follows."""
        self._complete = True
        self._end_if_done()

    def on_gone(self) -> None:
        """Cancel the open requests, and release the memory of messages that wait."""
        self._over = True
        while self._unread:
            self._unread.popleft().release()
        for one in list(self._open):
            if one.ticket is not None:
                one.ticket.cancel()
        turns, self._turns = self._turns, deque()
        for turn in turns:
            if turn.message is not None and turn.message.lease is not None:
                turn.message.lease.release()

    def on_taken(self, size: int, messages: int = 1) -> None:
        """See `Conversation.on_taken`."""
        self._backlog.take(size, messages)
        if self._backlog.resume():
            self._set_paused(False)
        self._read_on()

    def finish_when_answered(self) -> None:
        """See `Conversation.finish_when_answered`."""
        self._leaving = True
        self._end_if_done()

    # ---- requests ------------------------------------------------------------------------------------------------

    def _wants_more(self) -> bool:
        return not self._backlog.paused and len(self._open) < PAUSE_REQUESTS and len(self._turns) < PAUSE_REQUESTS

    def _read_on(self) -> None:
        """Submit the messages that arrived, and pause or resume the call by the limits of the stream."""
        unread, call = self._unread, self._call
        if self._over or self._reading_on or not (unread or call.paused):
            return
        self._reading_on = True  # an answer that comes at once calls this again
        while unread and self._wants_more() and not self._over:
            self._submit(unread.popleft())
        self._reading_on = False
        if self._over:
            return
        if self._wants_more():
            if call.paused:
                call.resume()
            self._end_if_done()
        else:
            call.pause()

    def _end_if_done(self) -> None:
        if self._over or self._open or self._turns or self._unread:
            return
        if self._complete:
            self._over = True
            self._call.finish()
        elif self._leaving:
            self._fail(Unavailable(SHUTTING_DOWN))

    def _submit(self, message: Message) -> None:
        data = message.data
        arrival = None if self._arrive is None else self._arrive()
        try:
            request, served, wants_final = self._decode(message, self._call.asked.forwarded)
        except EdgeServeError as error:
            self._refuse_unread(error, data)
            message.release()
            return
        except Exception as error:  # a bug here: the client must not wait for ever
            log.exception("a stream failed")
            message.release()
            self._fail(Internal(f"{type(error).__name__}: {error}"))
            return
        in_flight = self._call.in_flight
        if self._open and in_flight.now >= in_flight.limit:
            self._refuse(in_flight.refuse(), request.id, self._take_turn())
            message.release()
            return
        request.lease = message.lease
        turn = None if served.signature.decoupled else self._take_turn()
        one = _Open(request, served.signature, wants_final, turn)
        self._open.add(one)
        self._count_open()
        one.ticket = self._service.infer(served, request, lambda response: self._on_response(one, response), arrival)

    def _count_open(self) -> None:
        counted = max(0, len(self._open) - 1)
        self._call.in_flight.now += counted - self._counted
        self._counted = counted

    def _refuse_unread(self, error: EdgeServeError, data: Buffer) -> None:
        if isinstance(error, Unreadable):
            self._fail(error)
        else:
            asked = peek(data)
            self._service.count_client_error(asked.model_name, asked.model_version, error)
            self._refuse(error, asked.id, self._take_turn())

    def _take_turn(self) -> _Turn:
        turn = _Turn()
        self._turns.append(turn)
        return turn

    # ---- responses -----------------------------------------------------------------------------------------------

    def _on_response(self, one: _Open, response: InferResponse) -> None:
        if response.final:
            self._open.discard(one)
            self._count_open()
        lease = response.lease
        if not self._over:
            lease = self._pass_on(one, response)
        if lease is not None:
            lease.release()
        if response.final and not self._over:
            self._read_on()
            self._end_if_done()

    def _pass_on(self, one: _Open, response: InferResponse) -> Lease | None:
        """Send a response, and return its lease, unless the lease is needed until the response is sent."""
        error = response.error
        if error is not None and one.ticket is None:
            self._count(one, error)
            self._refuse(error, one.request.id, one.turn or self._take_turn())
        elif error is not None:
            self._send_error(one, response, error)
        elif not response.null:
            return self._send(one, response)
        elif one.wants_final:
            self._push(_make_written(grpc_response.encode_stream_notice(one.request, final=True)), one.turn)
        elif one.turn is not None:
            self._push(None, one.turn)
        return response.lease

    def _send(self, one: _Open, response: InferResponse) -> Lease | None:
        lease = response.lease
        try:
            inner, size = self._encoder.encode(response, one.request, one.signature, final=response.final)
        except EdgeServeError as error:
            self._send_error(one, response, error)
            return lease
        except Exception:
            self._send_error(one, response, report_unencodable(response))
            return lease
        parts, size = grpc_response.wrap_response(inner, size)
        if size <= _COPIED:
            self._push(_make_written(b"".join(parts)), one.turn)
            return lease
        self._push(_Written(parts, size, lease), one.turn)
        return None

    def _count(self, one: _Open, error: EdgeServeError) -> None:
        self._service.count_client_error(one.request.model_name, one.request.model_version, error)

    def _send_error(self, one: _Open, response: InferResponse, error: EdgeServeError) -> None:
        self._count(one, error)
        if self._call.asked.strict:
            self._fail(error)
            return
        self._push(_make_written(grpc_response.encode_stream_notice(one.request, response.final, error)), one.turn)

    def _refuse(self, error: EdgeServeError, request_id: str, turn: _Turn) -> None:
        """Answer a request that did not reach its model. As in Triton, this error never ends the stream, even with
        `triton_grpc_error`."""
        request = InferRequest("", id=request_id)
        self._push(_make_written(grpc_response.encode_stream_notice(request, None, error)), turn)

    def _fail(self, error: EdgeServeError) -> None:
        if not self._over:
            self._over = True
            self._call.fail(error)

    def _push(self, message: _Written | None, turn: _Turn | None) -> None:
        if turn is None:
            self._write(message)
            return
        turn.answered, turn.message = True, message
        while self._turns and self._turns[0].answered:
            self._write(self._turns.popleft().message)

    def _write(self, message: _Written | None) -> None:
        if message is None:
            return
        release = None if message.lease is None else message.lease.release
        waiting = self._call.write(message.parts, message.size, release)
        if not waiting:
            return
        self._backlog.add(waiting)
        if self._backlog.must_pause():
            self._backlog.pause(self._set_paused(True))
            if self._backlog.is_too_much():
                text = f"the stream was ended because the client left more than {backlog.MAX_UNREAD} bytes of it unread"
                self._over = True
                self._call.cut(StreamOverrun(text))

    def _set_paused(self, paused: bool) -> bool:
        """Pause or resume the senders of decoupled models. Return whether all of them can be paused."""
        senders = [one.ticket for one in self._open if one.turn is None and one.ticket is not None]
        can_wait = [ticket.set_paused(paused) for ticket in senders]
        return all(can_wait)


def _make_written(message: bytes) -> _Written:
    return _Written((message,), len(message))
