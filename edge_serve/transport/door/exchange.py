"""Interfaces between an HTTP connection and the application that answers its requests.

`http/exchange.py` implements `Exchange`; `v2/application.py` and `http/metrics.py` implement `Application`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_serve.messages.infer import Lease, Room
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.protocol.http1.head import RequestHead


class Exchange(Protocol):
    """A request that was received completely. Answer it exactly once, now or later, on the loop's thread."""

    head: RequestHead
    #: the whole body (de-chunked), a view of `lease` where the application placed it
    body: Buffer
    #: the memory in which the application placed the body; the application owns it from `handle` on
    lease: Lease | None
    #: additional header fields of the answer (set by an application that wraps another, such as `Cors`)
    extra: Sequence[tuple[str, str]]
    #: called once if the client disconnects before the answer is complete (set by the application)
    on_cancelled: Callable[[], None] | None

    #: record of the timestamps of the request (set by the application while requests are traced)
    arrival: Arrival | None

    @property
    def begun_ns(self) -> int:
        """Time of the first bytes of the request, while it is handled; 0 while nothing is traced."""

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a whole answer, with Content-Length. `on_sent` is called once, when the kernel has taken the last byte
        or the connection is closed, so that the buffers may be reused. A HEAD request gets the head only."""

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Start a chunked answer."""

    def write(self, data: Buffer) -> bool:
        """Send a chunk. Return False if the client reads too slowly: write again after `on_drained` is called."""

    def end(self) -> None:
        """End a chunked answer."""

    on_drained: Callable[[], None] | None

    @property
    def behind(self) -> bool:
        """Whether written data waits for the answer of an earlier request of the same connection."""


class Application(Protocol):
    """Answers requests."""

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        """Return `Exchange.extra` of a request that the connection refuses before it calls `handle`."""

    def check(self, head: RequestHead, length: int) -> None:
        """Check a request and the length of its body, once, before memory is claimed: of a chunked body, and of one
        that is large. The length of a chunked body is 0, because it is unknown.

        Raises:
            EdgeServeError: the body is refused; the error is answered at once and the connection closed.
        """

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Return memory for a body of `length` bytes (Content-Length known), or None for ordinary memory.

        Raises:
            EdgeServeError: the body is refused; the error is answered at once and the connection closed.
        """

    def handle(self, exchange: Exchange) -> None:
        """Answer, now or later. Never blocks and never raises."""
