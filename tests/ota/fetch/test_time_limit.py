"""A time limit for blocking calls."""

from __future__ import annotations

import threading
import time

import pytest

from ota.fetch.time_limit import run_within


def test_results_and_errors_come_through() -> None:
    assert run_within(5.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_within(5.0, lambda: 1 // 0)


def test_a_late_result_is_discarded() -> None:
    release, discarded = threading.Event(), threading.Event()

    def act() -> str:
        release.wait(5)
        return "late"

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        run_within(0.05, act, lambda value: discarded.set())
    assert time.monotonic() - started < 2
    release.set()
    assert discarded.wait(5)
