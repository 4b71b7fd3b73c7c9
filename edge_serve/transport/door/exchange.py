"""The seam between an HTTP connection and what answers its requests.

`http/exchange.py` implements `Exchange`; `v2/application.py` and `http/metrics.py` are `Application`s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edge_serve.messages.infer import Lease, Room
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http1.head import RequestHead


class Exchange(Protocol):
    """One request, fully received, waiting for its answer. Answer exactly once, now or later, on the loop's thread."""

    head: RequestHead
    #: the whole body (de-chunked), a view of `lease` where the application placed it
    body: Buffer
    #: the memory that the application placed the body in; the application owns it from `handle` on
    lease: Lease | None
    #: header fields of every answer to this request, beside its own (set by an application around the application)
    extra: Sequence[tuple[str, str]]
    #: called once if the client goes before the answer was given (set by the application)
    on_abandoned: Callable[[], None] | None

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a whole answer; Content-Length is computed. `on_sent` is called once when the kernel has taken the last
        byte or the connection is gone, so that buffers may be reused. HEAD requests get the head only."""

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Begin a chunked answer."""

    def write(self, data: Buffer) -> bool:
        """One chunk. False when the client reads too slowly: write no more until `on_drained` is called."""

    def end(self) -> None:
        """End a chunked answer."""

    on_drained: Callable[[], None] | None

    @property
    def behind(self) -> bool:
        """What was written waits for the answer of an earlier request of the same connection."""


class Application(Protocol):
    """Answers requests."""

    def check(self, head: RequestHead, length: int) -> None:
        """Whether a body of `length` bytes is welcome, asked once before memory is looked for.

        Raises:
            EdgeServeError: it is not; that is answered at once and the connection closed.
        """

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Memory for a body of `length` bytes (Content-Length known), or None for ordinary memory.

        Raises:
            EdgeServeError: the body is not welcome; it is answered at once and the connection closed.
        """

    def handle(self, exchange: Exchange) -> None:
        """Answer, now or later. Never blocks and never raises."""
