"""Runs a codec job for a request, and keeps the model version loaded until the job is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from edge_serve.transport.door.exchange import Exchange

Outcome = TypeVar("Outcome")


class CodecTicket(Protocol):
    """Handle for a codec job."""

    def cancel(self) -> None: ...


class Held(Protocol):
    """A model version that stays loaded while it is referenced."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


def run_in_codec(
    served: Held, start: Callable[[Callable[[Outcome], None]], CodecTicket], then: Callable[[Outcome], None]
) -> CodecTicket | None:
    """Acquire the version, start a job, and call `then` with its outcome. Return None if the job is done already.

    When `start` raises, release the version and do not call `then`.
    """
    is_done = False

    def done(outcome: Outcome) -> None:
        nonlocal is_done
        is_done = True
        try:
            then(outcome)
        finally:
            served.release()

    served.acquire()
    try:
        ticket = start(done)
    except BaseException:
        served.release()
        raise
    return None if is_done else ticket


def run_for_client(
    exchange: Exchange,
    served: Held,
    start: Callable[[Callable[[Outcome], None]], CodecTicket],
    then: Callable[[Outcome], None],
) -> None:
    """Do the same, and cancel the job when the client of `exchange` disconnects."""

    def done(outcome: Outcome) -> None:
        exchange.on_cancelled = None
        then(outcome)

    ticket = run_in_codec(served, start, done)
    if ticket is not None:
        exchange.on_cancelled = ticket.cancel
