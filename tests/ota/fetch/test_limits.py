"""Rate, hours, and retries: pure decisions."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ota.errors import FetchError, NotInRepository, UsageError
from ota.fetch.failures import RequestFailed
from ota.fetch.limits import (
    LONGEST_DELAY,
    LONGEST_RETRY_AFTER,
    MOST_IN_A_ROW,
    MOST_RETRIES,
    Retries,
    TokenBucket,
    check_hours,
    check_rate,
    reason_to_wait,
)

BERLIN = ZoneInfo("Europe/Berlin")


@given(st.lists(st.tuples(st.integers(1, 300_000), st.floats(0, 2)), min_size=1, max_size=60), st.integers(1000, 10**7))
def test_the_rate_is_never_exceeded(steps: list[tuple[int, float]], rate: int) -> None:
    bucket, now, total = TokenBucket(rate, 100.0), 100.0, 0
    for count, idle in steps:
        now += idle
        now += bucket.take(count, now)
        total += count
        assert total <= rate * (now - 100.0) + rate / 4 + 1


def test_a_link_that_is_slower_than_the_limit_does_not_wait() -> None:
    bucket = TokenBucket(1000, 0.0)

    assert [bucket.take(100, now) for now in (1.0, 2.0, 3.0)] == [0.0] * 3
    assert TokenBucket(0, 0.0).take(10**9, 0.0) == 0.0


def test_failures_without_headway_end_soon() -> None:
    retries = Retries()
    delays = [retries.delay(FetchError("x"), 1.0) for _ in range(MOST_IN_A_ROW)]

    assert delays == [1.0, 2.0, 4.0, 8.0, None]
    retries.headway()
    assert retries.delay(FetchError("x"), 0.0) == 0.5


@pytest.mark.fault("N3")
def test_a_run_has_a_limit_independent_of_progress() -> None:
    retries = Retries()
    tries = 0
    while retries.delay(FetchError("x"), 0.5) is not None:
        tries += 1
        retries.headway()
    assert tries == MOST_RETRIES


@pytest.mark.fault("N3")
@pytest.mark.parametrize("error", [NotInRepository("x"), RequestFailed("x", again=False)])
def test_final_errors_are_not_tried_again(error: FetchError) -> None:
    assert Retries().delay(error, 0.5) is None


@pytest.mark.fault("N3")
def test_retry_after_is_bounded() -> None:
    def delay(seconds: float) -> float | None:
        return Retries().delay(RequestFailed("x", retry_after=seconds), 0.0)

    assert delay(LONGEST_RETRY_AFTER) == LONGEST_RETRY_AFTER
    assert delay(LONGEST_RETRY_AFTER + 1) is None
    assert delay(0.0) == 0.5


def test_delays_are_bounded_and_differ() -> None:
    delays = {Retries(in_a_row=3).delay(FetchError("x"), random) for random in (0.0, 0.3, 1.0)}

    assert len(delays) == 3
    assert all(one is not None and 0 < one <= LONGEST_DELAY for one in delays)


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("hours", "when", "open_"),
    [
        ("22:00-06:00", "2026-11-22T21:59:59", False),
        ("22:00-06:00", "2026-11-22T22:00:00", True),
        ("22:00-06:00", "2026-11-23T00:00:00", True),
        ("22:00-06:00", "2026-11-23T05:59:59", True),
        ("22:00-06:00", "2026-11-23T06:00:00", False),
        ("02:00-03:00", "2026-03-29T01:59:59", False),  # the clocks go from 02:00 to 03:00: no such hour on that day
        ("02:00-03:00", "2026-03-29T03:00:00", False),
        ("02:00-05:00", "2026-03-29T03:30:00", True),
        ("02:00-03:00", "2026-10-25T02:30:00", True),  # twice on that day
        ("", "2026-11-22T12:00:00", True),
    ],
)
def test_hours_are_those_of_the_clock_on_the_wall(hours: str, when: str, open_: bool) -> None:
    assert (reason_to_wait(check_hours(hours), False, at(when), BERLIN) == "") is open_


def test_an_hour_that_comes_twice_counts_twice() -> None:
    first, second = at("2026-10-25T02:30:00"), at("2026-10-25T02:30:00", fold=1)

    assert second - first == 3600
    assert reason_to_wait("02:00-03:00", False, second, BERLIN) == ""


def test_a_metered_link_waits_at_every_hour() -> None:
    assert reason_to_wait("", True, 0.0) == "the link is metered (METERED=true): 'edge-ota apply' fetches now"


@pytest.mark.parametrize("text", ["always", "22-06", "24:00-06:00", "22:00-06:60", "22:00 - 06:00", "22:00"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"DOWNLOAD_HOURS: found .*, expected local times such as 22:00-06:00"):
        check_hours(text)


def test_a_rate_in_another_unit() -> None:
    assert [check_rate(0), check_rate(1000)] == [0, 1000]
    with pytest.raises(UsageError, match="RATE_LIMIT: found 2, expected bytes per second: at least 1000, or 0 for no"):
        check_rate(2)
