"""The rules of one trace setting (server src/tracer.cc)."""

from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.settings import TraceChanges, TraceSettings
from edge_serve.observe.tracing.tracing import TraceSetting, why_not

ON = TraceSettings(("TIMESTAMPS",), rate=1, file="t")


def taken(setting: TraceSetting, requests: int) -> list[int]:
    """Which of the requests, counted from 1, are traced."""
    return [number for number in range(1, requests + 1) if setting.take()]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (ON, ""),
        (TraceSettings(("TENSORS",), file="t"), ""),
        (TraceSettings(file="t"), "tracing is disabled"),
        (TraceSettings(("TIMESTAMPS",), rate=0, file="t"), "sample rate must be non-zero"),
        (TraceSettings(("TIMESTAMPS",)), "trace file name is not given"),
    ],
)
def test_why_nothing_is_traced(values: TraceSettings, reason: str) -> None:
    assert why_not(values) == reason


@pytest.mark.parametrize(
    ("rate", "count", "requests", "numbers"),
    [
        (1, -1, 3, [1, 2, 3]),
        (3, -1, 7, [3, 6]),
        (2, 2, 9, [2, 4]),
        (1, 0, 3, []),
        (0, -1, 3, []),
    ],
)
def test_every_rate_th_request_until_the_count_is_used_up(
    rate: int, count: int, requests: int, numbers: list[int]
) -> None:
    setting = TraceSetting(TraceSettings(("TIMESTAMPS",), rate, count, file="t"))

    assert taken(setting, requests) == numbers
    assert setting.values.count == (count if count <= 0 else count - len(numbers))


def test_a_setting_with_nothing_left_to_count_may_only_be_switched_off() -> None:
    setting = TraceSetting(TraceSettings(("TIMESTAMPS",), 1, 0, file="t"), frozenset({"level", "count"}))

    with pytest.raises(InvalidArgument, match=r"^Attempting to set invalid trace setting :$"):
        setting.changed(ON, TraceChanges())
    assert not setting.changed(ON, TraceChanges(level=())).take()
    assert setting.changed(ON, TraceChanges(count=1)).take()


def test_nothing_is_taken_while_it_is_off() -> None:
    setting = TraceSetting(TraceSettings(rate=1, file="t"))

    assert not setting.take()
    assert setting.seen == 0


def test_members_left_out_follow_the_global_setting() -> None:
    above = TraceSettings(("TIMESTAMPS",), 7, 9, 2, "t")
    setting = TraceSetting(ON).changed(above, TraceChanges(rate=3))

    assert setting.values == TraceSettings(("TIMESTAMPS",), 3, 9, 2, "t")
    assert setting.specified == {"rate"}

    later = setting.changed(TraceSettings(("TENSORS",), 8, 1, 5, "t"), TraceChanges())

    assert later.values == TraceSettings(("TENSORS",), 3, 1, 5, "t")


def test_cleared_members_follow_the_global_setting_again() -> None:
    above = TraceSettings(("TIMESTAMPS",), 7, 9, 2, "t")
    setting = TraceSetting(ON).changed(above, TraceChanges(rate=3, count=4, log_frequency=6))

    cleared = setting.changed(above, TraceChanges(cleared=frozenset({"rate", "count"})))

    assert (cleared.values.rate, cleared.values.count, cleared.values.log_frequency) == (7, 9, 6)
    assert cleared.specified == {"log_frequency"}


def test_off_is_asked_for_like_any_level() -> None:
    setting = TraceSetting(ON).changed(ON, TraceChanges(level=()))

    assert setting.values.level == ()
    assert setting.changed(ON, TraceChanges()).values.level == ()


def test_the_rest_of_the_count_is_kept_and_requests_are_counted_anew() -> None:
    setting = TraceSetting(ON).changed(ON, TraceChanges(rate=2, count=5))
    assert taken(setting, 5) == [2, 4]

    later = setting.changed(ON, TraceChanges(log_frequency=1))

    assert (later.values.count, later.seen) == (3, 0)


@pytest.mark.parametrize(
    ("above", "changes", "reason"),
    [
        (TraceSettings(), TraceChanges(level=("TIMESTAMPS",)), "trace file name is not given"),
        (ON, TraceChanges(rate=0), "sample rate must be non-zero"),
    ],
)
def test_a_setting_that_would_trace_and_cannot_is_refused(
    above: TraceSettings, changes: TraceChanges, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TraceSetting(above).changed(above, changes)
    assert caught.value.message == f"Attempting to set invalid trace setting :{reason}"


def test_a_rate_of_nothing_is_accepted_while_tracing_is_off() -> None:
    assert TraceSetting(TraceSettings()).changed(TraceSettings(), TraceChanges(rate=0)).values.rate == 0
