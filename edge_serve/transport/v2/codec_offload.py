"""What is too much for the loop is done by a codec process; the model version must stay while it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

Outcome = TypeVar("Outcome")


class CodecTicket(Protocol):
    """Something under way."""

    def cancel(self) -> None: ...


class Held(Protocol):
    """A model version that can be kept."""

    def hold(self) -> None: ...
    def let_go(self) -> None: ...


def run_in_codec(
    served: Held, start: Callable[[Callable[[Outcome], None]], CodecTicket], then: Callable[[Outcome], None]
) -> CodecTicket | None:
    """Hold the version, start a job, and call `then` with its outcome. Return the job, or None if it is done already.

    When `start` raises, the version is not held any more, and `then` is not called.
    """
    is_done = False

    def done(outcome: Outcome) -> None:
        nonlocal is_done
        is_done = True
        try:
            then(outcome)
        finally:
            served.let_go()

    served.hold()
    try:
        ticket = start(done)
    except BaseException:
        served.let_go()
        raise
    return None if is_done else ticket
