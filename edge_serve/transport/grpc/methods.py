"""The two kinds of methods that a call may be of, and what answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edge_serve.protocol.v2.routes import RouteGroup
from edge_serve.transport.grpc.messages import Message, MessagePlace

if TYPE_CHECKING:
    from edge_serve.transport.grpc.call import GrpcCall
    from edge_serve.transport.grpc.call_head import CallHead


#: is given the head of a call and one of its messages
Prepare = Callable[["CallHead", Message], Awaitable[None]]


class Conversation(Protocol):
    """What answers a call of many messages."""

    def on_message(self, message: Message) -> None:
        """The client has sent one; its lease is the conversation's."""

    def on_end(self) -> None:
        """It was the last one."""

    def on_gone(self) -> None:
        """The call is over."""

    def on_taken(self, size: int) -> None:
        """A message of which `GrpcCall.write` has said `size` is on its way."""


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one message and one answer.

    Attributes:
        answer: answers by `reply` or `fail`, now or later. May raise EdgeServeError, with which the call then fails.
        place: see `MessageStream.find_place`.
        prepare: does in a thread what is to be done with a large message in ordinary memory before it is handed over.
    """

    group: RouteGroup
    answer: Callable[[GrpcCall, Message], None]
    compresses: bool = False
    place: Callable[[bytes, int], MessagePlace | None] | None = None
    prepare: Prepare | None = None


@dataclass(frozen=True, slots=True)
class Streaming:
    """A method with many messages; `open` gives what answers the call, `place` and `prepare` are as of `Unary`."""

    group: RouteGroup
    open: Callable[[GrpcCall], Conversation]
    compresses: bool = False
    place: Callable[[bytes, int], MessagePlace | None] | None = None
    prepare: Prepare | None = None
