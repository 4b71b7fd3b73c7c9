"""One ModelStreamInfer call: many requests and their responses (server src/grpc/stream_infer_handler.cc).

Responses of ordinary models leave in the order of their requests; those of decoupled models when they come. What went
wrong is said in the stream, unless the client wants the first error to end it.

Nothing more is read from a client that has much under way, or much unread. The senders of decoupled models are then
made to wait; where that is not possible, responses are kept up to `backlog.MAX_UNREAD` bytes, beyond which the stream
is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.shared_memory import Regions
from edge_serve.messages.signature import Signature
from edge_serve.protocol import grpc_response
from edge_serve.protocol.grpc_infer import GrpcInferDecoder, Unreadable, cut
from edge_serve.protocol.grpc_response import GrpcInferEncoder
from edge_serve.transport import backlog
from edge_serve.transport.backlog import Backlog
from edge_serve.transport.generate import StreamTicket
from edge_serve.transport.v2_infer import Served

log = logging.getLogger(__name__)

#: requests under way from which on nothing more is read from the client
PAUSE_REQUESTS = 256

OnResponse = Callable[[InferResponse], None]
Write = Callable[[bytes], Awaitable[None]]


class GrpcInferService(Protocol):
    """What inference calls need of service.Service."""

    @property
    def regions(self) -> Regions: ...
    def exiting(self) -> bool: ...
    def lookup(self, name: str, version: str) -> Served: ...
    def infer(self, request: InferRequest, on_response: OnResponse) -> StreamTicket: ...


class StreamOverrun(EdgeServeError):
    """The client reads too slowly."""

    grpc_code = "RESOURCE_EXHAUSTED"


@dataclass(slots=True, eq=False)
class _Open:
    """A request that has not got its last response; `turn` holds the messages of one that has to wait for its turn."""

    request: InferRequest
    signature: Signature
    wants_final: bool
    turn: _Turn | None
    ticket: StreamTicket | None = None
    submitted: bool = False


@dataclass(slots=True, eq=False)
class _Turn:
    """The place of an ordinary request in the order of the stream; None until it is answered."""

    message: bytes | None = None


class Stream:
    """The requests under way of one call, and what waits to be written.

    Args:
        forwarded: metadata that becomes parameters of each request.
        strict: the first error ends the stream.
    """

    def __init__(
        self,
        service: GrpcInferService,
        decoder: GrpcInferDecoder,
        encoder: GrpcInferEncoder,
        forwarded: Mapping[str, str] | None,
        *,
        strict: bool,
    ) -> None:
        self._service = service
        self._decoder = decoder
        self._encoder = encoder
        self._forwarded = forwarded
        self._strict = strict
        self._open: set[_Open] = set()
        self._turns: deque[_Turn] = deque()
        self._messages: deque[bytes] = deque()
        self._backlog = Backlog()
        self._complete = False
        self._failure: EdgeServeError | None = None
        self._changed = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()

    async def read(self, requests: AsyncIterable[bytes]) -> None:
        """Submit requests as they come, until the client has sent its last one."""
        try:
            async for data in requests:
                self._submit(data)
                if not self._wants_more():
                    self._readable.clear()
                    await self._readable.wait()
                if self._failure is not None:
                    return
        except Exception as error:  # of ours; the client must not wait for ever
            log.exception("a stream failed")
            self._fail(Internal(f"{type(error).__name__}: {error}"))
        self._complete = True
        self._changed.set()

    async def write(self, write: Write) -> None:
        """Write messages as they come, until the last request has its last one.

        Raises:
            EdgeServeError: what the stream ends with.
        """
        while True:
            while self._messages:
                message = self._messages.popleft()
                await write(message)
                self._backlog.take(len(message))
                if self._backlog.may_go_on():
                    self._hold(False)
                if self._wants_more():
                    self._readable.set()
            if self._failure is not None:
                raise self._failure
            if self._complete and not self._open and not self._turns:
                return
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> None:
        """Nobody listens any more."""
        self._failure = self._failure or Internal("the stream has ended")
        for one in list(self._open):
            if one.ticket is not None:
                one.ticket.cancel()

    # ---- requests -----------------------------------------------------------------------------------------------

    def _wants_more(self) -> bool:
        return not self._backlog.held and len(self._open) < PAUSE_REQUESTS

    def _submit(self, data: bytes) -> None:
        try:
            request, signature, wants_final = self._decoder.decode(data, self._forwarded)
        except Unreadable as error:
            self._fail(error)
            return
        except EdgeServeError as error:
            parts = cut(data)
            self._refuse(error, "" if parts is None else parts.id, self._take_turn())
            return
        turn = None if signature.decoupled else self._take_turn()
        one = _Open(request, signature, wants_final, turn)
        self._open.add(one)
        one.ticket = self._service.infer(request, lambda response: self._on_response(one, response))
        one.submitted = True

    def _take_turn(self) -> _Turn:
        turn = _Turn()
        self._turns.append(turn)
        return turn

    # ---- responses ----------------------------------------------------------------------------------------------

    def _on_response(self, one: _Open, response: InferResponse) -> None:
        if response.final:
            self._open.discard(one)
        if self._failure is None:
            error = response.error
            if error is not None and not one.submitted:
                self._refuse(error, one.request.id, one.turn or self._take_turn())
            elif error is not None:
                self._send_error(one, response, error)
            elif not response.null:
                self._send(one, response)
            elif one.wants_final:
                self._push(grpc_response.stream_final(one.request), one.turn)
            elif one.turn is not None:
                self._push(b"", one.turn)
        if response.lease is not None:
            response.lease.release()
        if response.final:
            if self._wants_more():
                self._readable.set()
            self._changed.set()

    def _send(self, one: _Open, response: InferResponse) -> None:
        try:
            message = self._encoder.encode(response, one.request, one.signature, final=response.final)
        except EdgeServeError as error:
            self._send_error(one, response, error)
            return
        except Exception:
            log.exception("a response of model %s cannot be encoded", response.model_name)
            self._send_error(one, response, Internal("the server failed to encode the response, its log says why"))
            return
        self._push(grpc_response.stream_response(message), one.turn)

    def _send_error(self, one: _Open, response: InferResponse, error: EdgeServeError) -> None:
        if self._strict:
            self._fail(error)
            return
        self._push(grpc_response.stream_error(error, one.request, final=response.final), one.turn)

    def _refuse(self, error: EdgeServeError, request_id: str, turn: _Turn) -> None:
        """A request that did not get to its model."""
        if self._strict:
            self._fail(error)
            return
        self._push(grpc_response.stream_refusal(error, request_id), turn)

    def _fail(self, error: EdgeServeError) -> None:
        self._failure = self._failure or error
        self._readable.set()
        self._changed.set()

    def _push(self, message: bytes, turn: _Turn | None) -> None:
        if turn is None:
            self._append(message)
        else:
            turn.message = message
            while self._turns and self._turns[0].message is not None:
                ready = self._turns.popleft().message
                if ready:
                    self._append(ready)
        self._changed.set()

    def _append(self, message: bytes) -> None:
        self._messages.append(message)
        self._backlog.add(len(message))
        if self._backlog.must_hold():
            self._hold(True)
            if self._backlog.is_too_much():
                text = f"the stream was ended because the client left more than {backlog.MAX_UNREAD} bytes of it unread"
                self._messages.clear()
                self._fail(StreamOverrun(text))

    def _hold(self, held: bool) -> None:
        """Let the senders of decoupled models wait, or go on."""
        senders = [one.ticket for one in self._open if one.turn is None and one.ticket is not None]
        can_wait = [ticket.hold(held) for ticket in senders]
        self._backlog.held = held and all(can_wait)


def release(response: InferResponse) -> None:
    """Give back what a response holds."""
    if response.lease is not None:
        response.lease.release()
