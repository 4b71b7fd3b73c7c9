"""Streams that are held: who waits, and what ends it."""

from __future__ import annotations

import threading

import pytest

from edge_serve.workers.holding import Holds

PATIENCE = 10.0


class Waiter:
    """A sender in a thread of its own."""

    def __init__(self, holds: Holds, key: int) -> None:
        self.told: bool | None = None
        self._thread = threading.Thread(target=self._wait, args=(holds, key), daemon=True)
        self._thread.start()

    def _wait(self, holds: Holds, key: int) -> None:
        self.told = holds.wait(key, False)

    def ended(self) -> bool | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.told


def test_nobody_waits_for_a_stream_that_is_not_held() -> None:
    holds = Holds()
    holds.hold(1)

    assert holds.wait(2, False)
    holds.go_on(1)
    assert holds.wait(1, False)
    assert not holds.held


@pytest.mark.parametrize("end", ["go_on", "close"])
def test_all_senders_of_a_stream_wait_until_it_goes_on_or_never_will(end: str) -> None:
    holds = Holds()
    holds.hold(7)
    holds.hold(7)
    waiters = [Waiter(holds, 7) for _ in range(3)]
    assert [waiter.told for waiter in waiters] == [None] * 3

    if end == "go_on":
        holds.go_on(7)
    else:
        holds.close()

    assert [waiter.ended() for waiter in waiters] == [end == "go_on"] * 3


def test_the_last_response_does_not_wait() -> None:
    holds = Holds()
    holds.hold(1)

    assert holds.wait(1, True)


def test_what_is_held_when_the_model_closes_is_never_sent_and_nothing_is_held_afterwards() -> None:
    holds = Holds()
    holds.hold(1)
    holds.close()
    holds.hold(2)

    assert not holds.wait(1, False)
    assert not holds.wait(1, True)  # the end of what has a gap would look like a good one
    assert holds.wait(2, False)


def test_a_stream_that_is_held_again_at_once_waits_again() -> None:
    holds = Holds()
    for _ in range(200):
        holds.hold(1)
        waiter = Waiter(holds, 1)
        holds.go_on(1)
        holds.hold(1)
        holds.go_on(1)
        assert waiter.ended() is True
