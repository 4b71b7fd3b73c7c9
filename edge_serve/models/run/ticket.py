"""What whoever submits a request holds of it, and what it is told by: the same for all that can run a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_serve.messages.infer import InferResponse

OnResponse = Callable[[InferResponse], None]


class Ticket(Protocol):
    """A submitted request."""

    def cancel(self) -> None:
        """The client does not want the answer any more. Its callback still gets a response that is `final`."""

    def hold(self, held: bool) -> bool:
        """The client reads a decoupled model's responses too slowly, so that their sender should wait, or it has read
        on. Some that were sent before still come. False when nobody can be made to wait."""
