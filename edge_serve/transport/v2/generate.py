"""`generate` and `generate_stream`: one JSON reply, or server-sent events.

Which status an answer has is Triton's (server src/http_server.cc, GenerateRequestClass): what is refused before it
reaches the model has the error's own status; once it has, the first response decides, and any error of it is a 400.

A model pushes its responses as fast as its client reads: when too much waits for the client, the sender of this one
request is made to wait (`backlog`). Where nobody can be made to wait (the responses of an ensemble), and where the
client is not to blame (an earlier request of its connection is unanswered, and holding this one might keep that from
its end), responses are kept up to MAX_UNREAD bytes; beyond that the request is cancelled and its stream ended with an
error.

A response whose JSON the loop has no time for is written elsewhere (`Writer`); those after it wait for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.log_fields import model_fields
from edge_serve.protocol.inference.cost import is_long
from edge_serve.protocol.v2 import generate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import error_body
from edge_serve.transport.sockets import backlog
from edge_serve.transport.sockets.backlog import Backlog
from edge_serve.transport.v2.codec_offload import CodecTicket

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream; charset=utf-8"

#: the status of an error response of a model, whatever its code
MODEL_ERROR = 400

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class StreamTicket(Protocol):
    """What this needs of models.ticket.Ticket."""

    def cancel(self) -> None: ...
    def hold(self, held: bool) -> bool: ...


#: has a response written, whose lease it takes, and tells the text or why there is none; what is under way, if it is
Writer = Callable[[InferResponse, Callable[["bytes | EdgeServeError"], None]], "CodecTicket | None"]


class GenerateAnswer:
    """What becomes of a request: shared by both forms.

    Args:
        write: for long responses; None = the loop writes them.

    Attributes:
        refusal: why the request was not accepted; the caller answers it.
        exchange: how it is answered.
        over: the client has its answer, or has gone; what still comes is thrown away.
        on_error: called with each error of a request that was accepted.
    """

    def __init__(self, exchange: Exchange, write: Writer | None = None) -> None:
        self.refusal: EdgeServeError | None = None
        self.over = False
        self.on_error: Callable[[EdgeServeError], None] | None = None
        self._ticket: StreamTicket | None = None
        self.exchange = exchange
        self._write = write
        #: the first is being written elsewhere, the others come after it
        self._unwritten: deque[InferResponse] = deque()
        self._writing = self._telling = False
        self._job: CodecTicket | None = None
        exchange.on_abandoned = self._on_abandoned

    def on_response(self, response: InferResponse) -> None:
        """Take a response; see service.infer."""
        if self._ticket is None and response.error is not None:
            self.refusal, self.over = response.error, True
        elif response.error is not None and self.on_error is not None and not self.over:
            self.on_error(response.error)
        if self._unwritten or (self._write is not None and not self.over and is_long(response)):
            self._unwritten.append(response)
            self._waits(response)
            self._go_on()
        else:
            self._tell(response)

    def _tell(self, response: InferResponse) -> None:
        data, failed = (b"", False) if self.over else _body(response)
        if response.lease is not None:
            response.lease.release()
        if not self.over:
            self._take(data, failed, response.final)

    def _go_on(self) -> None:
        """Tell of what waits, in order, up to a response that has to be written elsewhere first."""
        if self._telling:  # it was written at once: the loop below goes on
            return
        self._telling = True
        while self._unwritten and not self._writing:
            response = self._unwritten[0]
            if self._write is not None and not self.over and is_long(response):
                self._writing = True
                job = self._write(response, self._on_written)
                self._job = job if self._writing else None
            else:
                self._unwritten.popleft()
                self._waits_no_more(response)
                self._tell(response)
        self._telling = False

    def _on_written(self, text: bytes | EdgeServeError) -> None:
        self._writing, self._job = False, None
        response = self._unwritten.popleft()
        self._waits_no_more(response)
        if not self.over:
            failed = isinstance(text, EdgeServeError)
            self._take(error_body(text.message) if isinstance(text, EdgeServeError) else text, failed, response.final)
        self._go_on()

    def _waits(self, response: InferResponse) -> None:
        """A response waits until it, or one before it, is written."""

    def _waits_no_more(self, response: InferResponse) -> None:
        """It is written, or needs not be."""

    def accepted(self, ticket: StreamTicket) -> None:
        """The request is on its way."""
        self._ticket = ticket
        if self.over:
            ticket.cancel()

    def _take(self, data: bytes, failed: bool, final: bool) -> None:
        """A response as JSON, empty when it only tells that none follows."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Want nothing more of the model."""
        self.over = True
        if self._ticket is not None:
            self._ticket.cancel()
        if self._job is not None:
            self._job.cancel()

    def _on_abandoned(self) -> None:
        self._stop()


def _size(response: InferResponse) -> int:
    return sum(len(tensor.data) for tensor in response.outputs)


def _body(response: InferResponse) -> tuple[bytes, bool]:
    """The JSON text of a response, empty when it is none, and whether it is an error."""
    if response.error is not None:
        return error_body(response.error.message), True
    if response.null:
        return b"", False
    try:
        return generate.write(response), False
    except EdgeServeError as error:
        return error_body(error.message), True
    except Exception:
        extra = model_fields(response.model_name, response.model_version, response.id)
        log.exception("a response of model %s cannot be encoded", response.model_name, extra=extra)
        return error_body("the server failed to encode the response, its log says why"), True


class Single(GenerateAnswer):
    """`generate`: the only response."""

    def __init__(self, exchange: Exchange, write: Writer | None = None) -> None:
        super().__init__(exchange, write)
        self._data = b""

    def _take(self, data: bytes, failed: bool, final: bool) -> None:
        if failed:
            self._reply(MODEL_ERROR, data)
        elif data and self._data:
            self._reply(Internal.http_status, error_body(_NOT_ONE))
        else:
            self._data = self._data or data
            if final and self._data:
                self._reply(200, self._data)
            elif final:
                self._reply(Internal.http_status, error_body(_NOT_ONE))
        if self.over and not final:
            self._stop()

    def _reply(self, status: int, data: bytes) -> None:
        self.over = True
        self.exchange.on_abandoned = None
        self.exchange.reply(status, (data,))


class EventStream(GenerateAnswer):
    """`generate_stream`: each response as an event, when it comes."""

    def __init__(self, exchange: Exchange, write: Writer | None = None) -> None:
        super().__init__(exchange, write)
        self._started = False
        self._blocked = False
        self._final = False
        self._waiting: deque[bytes] = deque()
        self._backlog = Backlog()
        exchange.on_drained = self._on_drained

    def _take(self, data: bytes, failed: bool, final: bool) -> None:
        if not self._started:
            self._started = True
            self.exchange.start(MODEL_ERROR if failed else 200, content_type=EVENT_STREAM)
        self._final = final
        if data:
            self._push(generate.encode_event(data))
        if final and not self._waiting and not self.over:
            self._end()

    def _push(self, data: bytes) -> None:
        if not self._blocked:
            self._blocked = not self.exchange.write(data)
            return
        self._waiting.append(data)
        self._backlog.add(len(data))
        if self._backlog.must_hold() and not self._final:
            self._hold()

    def _hold(self) -> None:
        if self._ticket is not None and not self.exchange.behind:
            self._backlog.held = self._ticket.hold(True)
        if self._backlog.is_too_much():
            self._cut()

    def _cut(self) -> None:
        """The client reads too slowly: it gets what waits, and then an error."""
        text = f"the stream was ended because the client left more than {backlog.MAX_UNREAD} bytes of it unread"
        self._waiting.append(generate.encode_event(error_body(text)))
        self._final = True
        self._stop()

    def _on_drained(self) -> None:
        self._blocked = False
        while self._waiting and not self._blocked:
            data = self._waiting.popleft()
            self._backlog.take(len(data))
            self._blocked = not self.exchange.write(data)
        self._let_go()
        if self._final and not self._waiting and not self._blocked:
            self._end()

    def _let_go(self) -> None:
        if self._backlog.may_go_on() and self._ticket is not None:
            self._backlog.held = False
            self._ticket.hold(False)

    def _waits(self, response: InferResponse) -> None:
        self._backlog.add(_size(response))
        if self._backlog.must_hold() and self._ticket is not None and not response.final:
            self._backlog.held = self._ticket.hold(True)

    def _waits_no_more(self, response: InferResponse) -> None:
        self._backlog.take(_size(response))
        self._let_go()

    def _end(self) -> None:
        self.over = True
        self.exchange.on_abandoned = self.exchange.on_drained = None
        self.exchange.end()


def check_encoding(encoding: str | None) -> None:
    """The body is as it is.

    Raises:
        InvalidArgument: it is compressed.
    """
    if encoding and encoding.strip().lower() != "identity":
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
