"""Methods, and the request heads of calls: method, deadline, encoding, access.

Heads with equal bytes are one object (protocol/http2/heads.py), so each of them is interpreted once.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from edge_serve.access.roles import Role
from edge_serve.errors import EdgeServeError, Unavailable, Unsupported
from edge_serve.messages.infer import Room
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.protocol.v2.infer_header import read_forwarded
from edge_serve.records import frozen, slotted
from edge_serve.transport.door.access import AccessGate
from edge_serve.transport.v2.routes import RouteGroup

if TYPE_CHECKING:
    from edge_serve.transport.grpc.call import GrpcCall
    from edge_serve.transport.grpc.messages import Message

#: called with the head of a call and one of its messages
Prepare = Callable[["CallHead", "Message"], Awaitable[None]]


class Conversation(Protocol):
    """Answers a streaming call."""

    def on_message(self, message: Message) -> None:
        """Handle a message of the client; the conversation releases its lease."""

    def on_end(self) -> None:
        """Handle the end of the request: no message follows."""

    def finish_when_answered(self) -> None:
        """End the call, because the server stops: now, or as soon as every message is answered."""

    def on_gone(self) -> None:
        """Handle the end of the call."""

    def on_taken(self, size: int, messages: int = 1) -> None:
        """Handle that a message of `size` bytes no longer waits, after `GrpcCall.write` has reported them.

        Args:
            messages: 0 = compression has made a message, which still waits, `size` bytes smaller.
        """


@frozen
class Method:
    """A method that clients can call: unary if it has `answer`, streaming if it has `open`.

    Attributes:
        role: the role that a client needs. Settings need it to be read, and the role admin to be changed.
        answer: answers the message of a unary call by `reply` or `fail`, now or later. The call fails with an
            EdgeServeError that it raises.
        open: returns the conversation that answers a streaming call.
        compresses: the compression level applies to its answers.
        place: see `GrpcCall.find_place`.
        prepare: prepares a large message in ordinary memory in a thread, before the method receives it.
        large: its messages have tensors or files, and may have more than SMALL_BYTES. Those of other methods may
            not, as the bodies of HTTP (`Operation.check_body`).
    """

    group: RouteGroup
    role: Role
    answer: Callable[[GrpcCall, Message], None] | None = None
    open: Callable[[GrpcCall], Conversation] | None = None
    compresses: bool = False
    place: Callable[[bytes, int], Room | None] | None = None
    prepare: Prepare | None = None
    large: bool = False


#: --grpc-infer-response-compression-level -> the encodings to offer, the preferred one first
_LEVELS: dict[str, tuple[str, ...]] = {
    "none": (), "low": ("gzip", "deflate"), "medium": ("deflate", "gzip"), "high": ("deflate", "gzip"),
}  # fmt: skip
#: `a2b_base64` skips other characters
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_NO_METADATA = (b"te", b"content-type", b"content-length", b"host")


@frozen
class GrpcSettings:
    """Settings of a gRPC door that concern calls.

    Attributes:
        header_forward_pattern: --grpc-header-forward-pattern; None = none.
        restricted: --grpc-restricted-protocol, group -> (metadata key, value).
        compression_level: of inference responses: one of none, low, medium and high.
        max_message: bytes of the largest message, both as sent and inflated.
    """

    header_forward_pattern: re.Pattern[str] | None = None
    restricted: Mapping[RouteGroup, tuple[str, str]] = field(default_factory=dict)
    compression_level: str = "none"
    max_message: int = 2**31 - 1


class HeadRefused(EdgeServeError):
    """The request is not a gRPC call; the answer is the HTTP status `status`."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.status = status


class DeadlineExceeded(EdgeServeError):
    """The deadline of the call has passed."""

    http_status, grpc_code = 504, "DEADLINE_EXCEEDED"


@slotted
class CallHead:
    """The interpreted head of a call.

    Attributes:
        method: the called method; None when `refusal` is the answer.
        timeout_ns: from `grpc-timeout`; 0 = none.
        encoding: of the request's compressed messages; "" = it may have none.
        deflate: the encoding of the answer's messages; "" = none.
        forwarded: metadata that becomes parameters.
        strict: `triton_grpc_error`: the first error of a model ends a stream.
        denied: access control made the `refusal`.
        unchangeable: the error for a message that changes settings, if this client may only read them.
    """

    method: Method | None = None
    refusal: EdgeServeError | None = None
    timeout_ns: int = 0
    encoding: str = ""
    deflate: str = ""
    forwarded: Mapping[str, str] | None = None
    strict: bool = False
    denied: bool = False
    unchangeable: EdgeServeError | None = None


class HeadInterpreter:
    """Interprets the heads of clients with equal rights.

    Args:
        methods: by path.

    Attributes:
        gate: access control for these clients; None = they may call every method.
    """

    def __init__(self, methods: Mapping[str, Method], settings: GrpcSettings, gate: AccessGate | None = None) -> None:
        self._methods = methods
        self.gate = gate
        self._pattern = settings.header_forward_pattern
        self._restricted = settings.restricted
        self._encodings = _LEVELS[settings.compression_level]

    def interpret(self, head: StreamHead) -> CallHead:
        """Interpret `head`, and store the result in its `meaning`."""
        asked = CallHead()
        try:
            self._read(head, asked)
        except EdgeServeError as error:
            asked.refusal = error
            asked.method = None
        head.meaning = asked
        return asked

    def _read(self, head: StreamHead, asked: CallHead) -> None:
        # as in Triton, the first of equal keys counts, except in forwarded metadata
        fields = {name.decode("ascii"): value for name, value in reversed(head.fields)}
        _check_is_grpc(head, fields)
        method = self._methods.get(head.path.decode("latin-1"))
        if method is None:
            raise Unsupported("")  # Triton gives no text either
        restriction = self._restricted.get(method.group)
        if restriction is not None and fields.get(restriction[0].lower()) != restriction[1].encode():
            raise Unavailable(f"This protocol is restricted, expecting header '{restriction[0]}'")
        if self.gate is not None:
            self._ask_gate(self.gate, method, fields, asked)
        asked.method = method
        if "grpc-timeout" in fields:
            asked.timeout_ns = max(1, grpc_wire.read_timeout(fields["grpc-timeout"]))
        asked.encoding = grpc_wire.check_encoding(fields.get("grpc-encoding", b"identity").decode("latin-1"))
        asked.strict = fields.get("triton_grpc_error") == b"true"
        if method.compresses and self._encodings:
            accepted = fields.get("grpc-accept-encoding", b"").decode("latin-1").replace(" ", "").split(",")
            asked.deflate = next((name for name in self._encodings if name in accepted), "")
        if self._pattern is not None and method.group is RouteGroup.INFERENCE:
            asked.forwarded = read_forwarded(_read_metadata(head), self._pattern)

    def _ask_gate(self, gate: AccessGate, method: Method, fields: Mapping[str, bytes], asked: CallHead) -> None:
        def field(name: str) -> str | None:
            value = fields.get(name)
            return None if value is None else value.decode("latin-1")

        refusal = gate.check(method.role, field)
        if refusal is not None:
            asked.denied = True
            raise refusal
        if method.group in (RouteGroup.TRACE, RouteGroup.LOGGING):  # the message decides whether it changes anything
            asked.unchangeable = gate.check(Role.ADMIN, field)


def _check_is_grpc(head: StreamHead, fields: Mapping[str, bytes]) -> None:
    if head.too_large:
        raise HeadRefused(431)
    if head.method != b"POST":
        raise HeadRefused(405)
    content_type = fields.get("content-type", b"")
    if not content_type.startswith(b"application/grpc") or content_type[16:17] not in (b"", b"+", b";"):
        raise HeadRefused(415)


def _read_metadata(head: StreamHead) -> list[tuple[str, str]]:
    """Return the metadata that the caller has added, as text."""
    return [
        (name.decode("ascii"), value.decode("utf-8", "replace"))
        for name, joined in head.fields
        if not name.startswith(b"grpc-") and name not in _NO_METADATA
        for value in (map(_decode_base64, joined.split(b",")) if name.endswith(b"-bin") else (joined,))
    ]


def _decode_base64(value: bytes) -> bytes:
    """Decode a value of a `-bin` key; clients may omit the padding. A value that is not base64 stays as it is."""
    if _BASE64.fullmatch(value) is None:
        return value
    try:
        return binascii.a2b_base64(value + b"==")
    except binascii.Error:  # no base64 text has that number of characters
        return value
