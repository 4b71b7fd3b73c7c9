"""The two kinds of methods, unary and streaming, and the interface of a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edge_serve.transport.grpc.messages import Message, MessagePlace
from edge_serve.transport.v2.routes import RouteGroup

if TYPE_CHECKING:
    from edge_serve.transport.grpc.call import GrpcCall
    from edge_serve.transport.grpc.call_head import CallHead


#: called with the head of a call and one of its messages
Prepare = Callable[["CallHead", Message], Awaitable[None]]


class Conversation(Protocol):
    """Answers a streaming call."""

    def on_message(self, message: Message) -> None:
        """Handle a message of the client; the conversation releases its lease."""

    def on_end(self) -> None:
        """Handle the end of the request: no message follows."""

    def on_gone(self) -> None:
        """Handle the end of the call."""

    def on_taken(self, size: int) -> None:
        """Handle that a message of `size` bytes no longer waits, after `GrpcCall.write` has reported them."""


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one message and one answer.

    Attributes:
        answer: answers by `reply` or `fail`, now or later. The call fails with an EdgeServeError that it raises.
        place: see `GrpcCall.find_place`.
        prepare: prepares a large message in ordinary memory in a thread, before `answer` receives it.
    """

    group: RouteGroup
    answer: Callable[[GrpcCall, Message], None]
    compresses: bool = False
    place: Callable[[bytes, int], MessagePlace | None] | None = None
    prepare: Prepare | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """A method with many messages; `open` returns the conversation. `place` and `prepare` are as in `Unary`."""

    group: RouteGroup
    open: Callable[[GrpcCall], Conversation]
    compresses: bool = False
    place: Callable[[bytes, int], MessagePlace | None] | None = None
    prepare: Prepare | None = None
