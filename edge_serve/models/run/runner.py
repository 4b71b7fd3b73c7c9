"""The interfaces of a runner, which executes the requests of a version, of its instances, and of a request's handle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.scheduling.core import Sequences

if TYPE_CHECKING:
    from edge_serve.models.run.driver import Job

OnResponse = Callable[[InferResponse], None]


class Ticket(Protocol):
    """The handle of a submitted request."""

    def cancel(self) -> None:
        """Cancel the request: the client does not need the response. The callback still gets a response that is
        `final`."""

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume the sender of a decoupled model's responses, because the client reads slowly or has caught
        up.

        Some responses that were sent before still arrive. Return False when no sender can be paused. A request that
        waits for a swap can be paused, but perhaps not after the swap.
        """

    def jobs(self) -> Sequence[Job]:
        """Return the requests at drivers of which one or all must be answered to answer this one; none when that is not
        known."""


class Answered:
    """The handle of a request that was answered at once."""

    def cancel(self) -> None:
        """Do nothing: the response was sent."""

    def set_paused(self, paused: bool) -> bool:
        """Return True: no further response comes."""
        return True

    def jobs(self) -> Sequence[Job]:
        """Return none: the request waits for no driver."""
        return ()


ANSWERED = Answered()


class Submitter(Protocol):
    """A receiver of validated requests: a runner, or a response cache before it."""

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        """Queue a request. `on_response` is called exactly once, possibly before this returns. For a decoupled model it
        is called any number of times, the last with `final`."""


class Runner(Submitter, Sequences, Protocol):
    """A driver over workers, an ensemble over other models, or the queue of a version that is being swapped.

    The defaults are for runners without sequences, batches, and queues of their own.
    """

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        """Accept no new requests. `on_idle` is called once all accepted ones are answered.

        Args:
            sequences: open sequences may continue, and `on_idle` waits for their ends.
        """

    def fail_all(self, error: EdgeServeError) -> None:
        """Fail all accepted requests with `error`. The model is closed, so no worker will answer them."""
        return

    def in_flight(self) -> int:
        """Return the number of requests accepted and not answered."""

    def oldest_batch_seconds(self) -> float | None:
        """Return the age of the oldest running batch; None = no batch runs here."""
        return None

    def ignore_sequences(self) -> None:
        """Stop waiting for open sequences, because no client can reach them any more. Accepted requests are still
        answered."""
        return

    def find_stall(self) -> int | None:
        """Return a marker if requests wait although an instance is free, no batch runs, and no timer is set; else None.

        The marker changes when requests move. Requests of sequences may wait for each other, and do not count.
        """
        return None

    def wake(self) -> None:
        """Ask the scheduler again, in case a wake-up was lost."""
        return


class Executors(Protocol):
    """The instances that a driver sends batches to: an `OpenedModel`, or the rate limiter before it (`rate_limit`)."""

    @property
    def numbers(self) -> Collection[int]: ...

    @property
    def timeout(self) -> float: ...

    def seats(self, instance: int) -> int: ...

    def execute(self, instance: int, batch_id: int, requests: Sequence[InferRequest], each: bool = False) -> None: ...

    def running_since_ns(self) -> int | None: ...

    def cancel(self, instance: int, batch_id: int, index: int) -> None: ...

    def set_paused(self, instance: int, batch_id: int, index: int, paused: bool) -> None: ...
