"""The answers to `generate` and `generate_stream`: one JSON reply, or server-sent events.

The status of an answer is Triton's (server src/http_server.cc, GenerateRequestClass). A request that is refused before
it reaches the model is answered with the error's own status. After that the first response decides: 400 for an error.

A model sends responses as fast as the client reads: when too many bytes wait for the client, the sender of this
request is paused (`backlog`). Two senders are not paused: that of an ensemble cannot be, and that of a request behind
an unanswered one of the same connection might delay the earlier one. Their responses are kept up to MAX_UNREAD bytes;
beyond that the request is cancelled and its stream ended with an error.

A response whose JSON would block the loop is encoded in a codec process (`Writer`); later responses wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.infer import InferResponse
from edge_serve.models.run.runner import Ticket
from edge_serve.protocol.inference.cost import is_long
from edge_serve.protocol.v2 import generate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import error_body
from edge_serve.transport.sockets import backlog
from edge_serve.transport.sockets.backlog import Backlog
from edge_serve.transport.v2.codec_offload import CodecTicket
from edge_serve.transport.v2.infer import report_unencodable

EVENT_STREAM = "text/event-stream; charset=utf-8"

#: the status of an error response of a model, whatever its code
MODEL_ERROR = 400

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


#: encodes a response, whose lease it takes, and passes on the text or the error; returns the job unless it is done
Writer = Callable[[InferResponse, Callable[["bytes | EdgeServeError"], None]], "CodecTicket | None"]


class GenerateAnswer:
    """The answer to a request: base class of both forms.

    Args:
        write: encodes long responses; None = the loop encodes them.

    Attributes:
        refusal: the error of a request that was not accepted, which the caller answers.
        exchange: the request to answer.
        over: the client has its answer, or has disconnected; further responses are discarded.
        on_error: called with each error of an accepted request.
    """

    def __init__(self, exchange: Exchange, write: Writer | None = None) -> None:
        self.refusal: EdgeServeError | None = None
        self.over = False
        self.on_error: Callable[[EdgeServeError], None] | None = None
        self._ticket: Ticket | None = None
        self.exchange = exchange
        self._write = write
        #: responses to send in order; a codec process may be encoding the first one
        self._unwritten: deque[InferResponse] = deque()
        self._writing = self._delivering = False
        self._job: CodecTicket | None = None
        exchange.on_cancelled = self._stop

    def on_response(self, response: InferResponse) -> None:
        """Take a response; see `Service.infer`."""
        if self._ticket is None and response.error is not None:
            self.refusal, self.over = response.error, True
        elif response.error is not None and self.on_error is not None and not self.over:
            self.on_error(response.error)
        if self._unwritten or (self._write is not None and not self.over and is_long(response)):
            self._unwritten.append(response)
            self._add_waiting(response)
            self._deliver_unwritten()
        else:
            self._deliver(response)

    def _deliver(self, response: InferResponse) -> None:
        data, failed = (b"", False) if self.over else _encode(response)
        if response.lease is not None:
            response.lease.release()
        if not self.over:
            self._take(data, failed, response.final)

    def _deliver_unwritten(self) -> None:
        """Deliver waiting responses in order, up to one that a codec process has to encode."""
        if self._delivering:  # called within `_write`: the loop below continues
            return
        self._delivering = True
        while self._unwritten and not self._writing:
            response = self._unwritten[0]
            if self._write is not None and not self.over and is_long(response):
                self._writing = True
                job = self._write(response, self._on_written)
                self._job = job if self._writing else None
            else:
                self._unwritten.popleft()
                self._remove_waiting(response)
                self._deliver(response)
        self._delivering = False

    def _on_written(self, text: bytes | EdgeServeError) -> None:
        self._writing, self._job = False, None
        response = self._unwritten.popleft()
        self._remove_waiting(response)
        if not self.over:
            failed = isinstance(text, EdgeServeError)
            self._take(error_body(text.message) if isinstance(text, EdgeServeError) else text, failed, response.final)
        self._deliver_unwritten()

    def _add_waiting(self, response: InferResponse) -> None:
        """Count a response that waits until it, or one before it, is encoded."""

    def _remove_waiting(self, response: InferResponse) -> None:
        """Count a response that waits no more."""

    def accept(self, ticket: Ticket) -> None:
        """Take the handle of the request, which the service has accepted."""
        self._ticket = ticket
        if self.over:
            ticket.cancel()

    def _take(self, data: bytes, failed: bool, final: bool) -> None:
        """Take the JSON of a response; it is empty if the response only marks the end."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Cancel the request and the job under way."""
        self.over = True
        if self._ticket is not None:
            self._ticket.cancel()
        if self._job is not None:
            self._job.cancel()


def _size(response: InferResponse) -> int:
    return sum(len(tensor.data) for tensor in response.outputs)


def _encode(response: InferResponse) -> tuple[bytes, bool]:
    """Return the JSON of a response, empty if it only marks the end, and whether it is an error."""
    if response.error is not None:
        return error_body(response.error.message), True
    if response.null:
        return b"", False
    try:
        return generate.write(response), False
    except EdgeServeError as error:
        return error_body(error.message), True
    except Exception:
        return error_body(report_unencodable(response).message), True


class Single(GenerateAnswer):
    """The answer to `generate`: a single response."""

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
        self.exchange.on_cancelled = None
        self.exchange.reply(status, (data,))


class EventStream(GenerateAnswer):
    """The answer to `generate_stream`: each response as an event, as soon as the model sends it."""

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
        if self._backlog.must_pause() and not self._final:
            self._pause()

    def _pause(self) -> None:
        if self._ticket is not None and not self.exchange.behind:
            self._backlog.pause(self._ticket.set_paused(True))
        if self._backlog.is_too_much():
            self._end_unread()

    def _end_unread(self) -> None:
        """End a stream that the client reads too slowly with the waiting responses and an error."""
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
        self._resume()
        if self._final and not self._waiting and not self._blocked:
            self._end()

    def _resume(self) -> None:
        if self._backlog.resume() and self._ticket is not None:
            self._ticket.set_paused(False)

    def _add_waiting(self, response: InferResponse) -> None:
        self._backlog.add(_size(response))
        if self._backlog.must_pause() and self._ticket is not None and not response.final:
            self._backlog.pause(self._ticket.set_paused(True))

    def _remove_waiting(self, response: InferResponse) -> None:
        self._backlog.take(_size(response))
        self._resume()

    def _end(self) -> None:
        self.over = True
        self.exchange.on_cancelled = self.exchange.on_drained = None
        self.exchange.end()


def check_encoding(encoding: str | None) -> None:
    """Check that the body is not compressed.

    Raises:
        InvalidArgument: the body is compressed.
    """
    if encoding and encoding.strip().lower() != "identity":
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
