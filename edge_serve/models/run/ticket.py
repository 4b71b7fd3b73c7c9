"""Handle for a submitted request, and the callback type for its responses. Shared by all runners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_serve.messages.infer import InferResponse

OnResponse = Callable[[InferResponse], None]


class Ticket(Protocol):
    """The handle of a submitted request."""

    def cancel(self) -> None:
        """Cancel the request: the client does not need the response. The callback still gets a response that is
        `final`."""

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume the sender of a decoupled model's responses, because the client reads slowly or has caught
        up.

        Some responses that were sent before still arrive. Return False when no sender can be paused.
        """
