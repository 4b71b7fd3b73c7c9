"""Feeds a reader a stream of bytes as a connection would, and notes what came out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1.head import HeadParser, MessageLimits, RequestHead
from edge_serve.protocol.http1.reader import RequestReader

Seen = tuple[str, str, bytes]


@dataclass
class Outcome:
    """The requests in a stream of bytes, and its end.

    Attributes:
        seen: method, target and body of each complete request.
        end: "open" between requests, "incomplete", "closed" after a request that closes, or the error's status.
    """

    seen: list[Seen] = field(default_factory=list)
    heads: list[RequestHead] = field(default_factory=list)
    end: str = "open"
    error: str = ""


def no_place(head: RequestHead, length: int) -> Lease | None:
    """An application that takes every body as it comes."""
    return None


def grow_freely(total: int) -> int:
    """An application that has memory for every chunked body."""
    return sys.maxsize


def check_nothing(head: RequestHead, length: int) -> None:
    """An application that takes every request."""


def read_stream(pieces: Iterable[bytes], limits: MessageLimits | None = None, buffer_size: int = 1 << 16) -> Outcome:
    """Receive the pieces one after the other."""
    shared = bytearray(buffer_size)
    reader = RequestReader(
        HeadParser(limits or MessageLimits()), shared, memoryview(shared), no_place, grow_freely, check_nothing
    )
    outcome = Outcome()
    try:
        for piece in pieces:
            while piece and outcome.end == "open":
                buffer = reader.buffer()
                taken = min(len(buffer), len(piece))
                buffer[:taken] = piece[:taken]
                del buffer
                piece = piece[taken:]
                reader.advance(taken)
                _collect(reader, outcome)
                reader.save_unread()
                overwritten = min(taken, len(shared))
                shared[:overwritten] = b"\xee" * overwritten  # another connection receives
        if outcome.end == "open" and (reader.in_head or reader.in_body):
            outcome.end = "incomplete"
    except EdgeServeError as error:
        outcome.end = str(error.http_status)
        outcome.error = error.message
    return outcome


def _collect(reader: RequestReader, outcome: Outcome) -> None:
    while outcome.end == "open":
        head = reader.next()
        if head is None:
            if not reader.rested:
                return
            continue
        outcome.seen.append((head.method, head.target, bytes(reader.body)))
        outcome.heads.append(head)
        if not head.keep_alive:
            outcome.end = "closed"


def one_by_one(data: bytes) -> list[bytes]:
    """Each byte on its own."""
    return [data[at : at + 1] for at in range(len(data))]
