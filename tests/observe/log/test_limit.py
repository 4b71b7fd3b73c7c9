"""How many like lines pass, and which repeated lines the text log writes, by a clock of the test's own."""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import strategies as st

from edge_serve.messages.log_fields import RECURS, model_fields
from edge_serve.observe.log.limit import LikeLines, Limiter, kind_of
from tests.examples import examples


def limiter(**settings: float) -> Limiter[str]:
    return Limiter(burst=3, per_second=1.0, summary_seconds=5.0, **settings)  # type: ignore[arg-type]


def test_a_burst_passes_and_then_one_a_second() -> None:
    lines = limiter()

    assert [lines.take("a", str(i), 100.0) for i in range(5)] == [True, True, True, False, False]
    assert lines.take("a", "5", 101.0)
    assert not lines.take("a", "6", 101.0)


def test_suppressed_lines_are_counted_after_a_while_with_the_last_one() -> None:
    lines = limiter()
    for i in range(6):
        lines.take("a", str(i), 100.0)

    assert lines.due(104.9) == []
    assert lines.due(105.0) == [(3, "5")]
    assert lines.due(200.0) == []


def test_a_noisy_group_costs_another_nothing() -> None:
    lines = limiter()
    for i in range(1000):
        lines.take("noisy", str(i), 100.0)

    assert lines.take("quiet", "x", 100.0)


def test_all_suppressed_lines_are_counted_at_the_end() -> None:
    lines = limiter()
    for i in range(4):
        lines.take("a", str(i), 100.0)

    assert lines.due(100.0, all=True) == [(1, "3")]


def test_a_group_is_counted_before_it_is_evicted() -> None:
    lines = limiter(most_groups=2)
    for i in range(5):
        lines.take("a", str(i), 100.0)
    lines.take("b", "x", 100.0)
    lines.take("c", "x", 100.0)

    assert lines.due(100.0) == [(2, "4")]
    assert lines.take("a", "again", 100.0)


@examples(30, 200, st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 3)), max_size=200))
def test_each_line_passes_or_is_counted(steps: list[tuple[str, float]]) -> None:
    lines: Limiter[int] = Limiter(burst=2, per_second=0.5, summary_seconds=1.0, most_groups=3)
    now, passed, told = 10.0, 0, 0
    for i, (key, pause) in enumerate(steps):
        now += pause
        passed += lines.take(key, i, now)
        told += sum(count for count, _ in lines.due(now))
    told += sum(count for count, _ in lines.due(now, all=True))

    assert passed + told == len(steps)


def written(lines: Limiter[int], times: Iterable[float], *, error: bool = True, tail: float = -1.0) -> list[float]:
    """Return when something was written: a line, or a count; the limiter is asked for counts once a second."""
    found, told, passed, second = [], 0, 0, 0.0
    taken = list(times)
    for now in [*taken, tail]:
        while second < now:
            second += 1.0
            for omitted, _ in lines.due(second):
                found.append(second)
                told += omitted
        if now != tail and lines.take("a", 0, now, error=error):
            passed += 1
            found.append(now)
    told += sum(omitted for omitted, _ in lines.due(second, all=True))
    assert passed + told == len(taken)
    return found


def test_an_error_that_is_repeated_for_a_day_is_written_once_a_minute() -> None:
    times = written(Limiter(), (i / 4 for i in range(4 * 86_400)))

    assert len([at for at in times if at < 60]) == 240
    later = [at for at in times if at > 120]
    assert len(later) <= 86_400 / 60
    assert min(b - a for a, b in itertools.pairwise(later)) >= 59


def test_an_error_now_and_then_is_written_at_once() -> None:
    times = [100.0 + 61 * i for i in range(50)]

    assert written(Limiter(), times) == times


def test_a_line_that_is_held_back_follows_within_a_minute() -> None:
    times = [100.0 + 45 * i for i in range(20)]

    shown = written(Limiter(), times, tail=1200.0)
    assert all(any(0 <= when - at <= 60 for when in shown) for at in times)
    assert min(b - a for a, b in itertools.pairwise(shown[2:])) >= 60


def test_after_ten_minutes_of_silence_an_error_is_new() -> None:
    lines: Limiter[int] = Limiter()
    for second in range(120):
        lines.take("a", second, 100.0 + second)
    lines.due(220.0, all=True)

    assert not lines.take("a", 0, 221.0)
    assert [lines.take("a", i, 900.0 + i) for i in range(30)] == [True] * 30


def test_warnings_are_limited_only_above_the_rate() -> None:
    once_a_second, flood = [100.0 + i for i in range(600)], [100.0 + i / 50 for i in range(50 * 600)]

    assert written(Limiter(), once_a_second, error=False) == once_a_second
    assert len([at for at in written(Limiter(), flood, error=False) if at > 220]) <= 9


def test_a_lenient_limiter_holds_nothing_back_for_a_minute() -> None:
    flood = [100.0 + i / 50 for i in range(50 * 300)]
    times = written(Limiter(lenient=True), flood, error=False)

    assert len([at for at in times if at < 159.99]) == 60 * 50
    assert len([at for at in times if at > 165]) <= 5


def test_addresses_in_memory_do_not_make_lines_of_a_model_differ() -> None:
    first, second = (
        logging.LogRecord("edge_serve.workers.front.output", logging.INFO, "x.py", 1, text, (), None)
        for text in ("m: Current thread 0x00007f3a (most recent call first):", "m: Current thread 0x00007fbc (most "
                     "recent call first):")
    )  # fmt: skip

    assert kind_of(first) == kind_of(second)


CHATTER = "edge_serve.workers.front.output"


class Text:
    """A text log and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._stream = io.StringIO()
        self._handler = logging.StreamHandler(self._stream)
        self._like = LikeLines(self._handler, clock=lambda: self.now)
        self._handler.addFilter(self._like)

    def say(self, name: str, level: int, text: str, **extra: str) -> None:
        """Log a line, as this logger of the server does."""
        record = logging.LogRecord(name, level, f"{name}.py", 1, text, (), None)
        record.__dict__.update(model_fields("m"), **extra)
        self._handler.handle(record)

    def repeat(
        self, minutes: int, name: str, level: int, text: str, extra: Mapping[str, str] | None = None, every: float = 1.0
    ) -> list[int]:
        """Log the line again and again, and return how many lines were written in each minute."""
        written = []
        for _ in range(minutes):
            before = len(self.lines())
            for _ in range(round(60 / every)):
                self.now += every
                self.say(name, level, text, **(extra or {}))
                self._like.tick()
            written.append(len(self.lines()) - before)
        return written

    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("name", "level", "extra"),
    [
        ("edge_serve.models.run.driver", logging.ERROR, {}),
        ("edge_serve.model", logging.WARNING, {}),
        ("edge_serve.workers.front.worker", logging.INFO, {RECURS: "1"}),
        (CHATTER, logging.INFO, {RECURS: "1"}),
    ],
)
def test_repeated_messages_become_one_line_a_minute_with_a_count(name: str, level: int, extra: dict[str, str]) -> None:
    log = Text()
    first, *later = log.repeat(5, name, level, "it broke again", extra)

    assert first == 60
    assert all(count <= 1 for count in later)
    assert log.lines()[-1] == "60 more like this suppressed: it broke again"


@pytest.mark.parametrize("name", [CHATTER, "edge_serve.models.control.registry"])
def test_other_lines_of_level_info_all_pass(name: str) -> None:
    assert Text().repeat(5, name, logging.INFO, "temperature 23.5") == [60] * 5


def test_a_model_that_prints_without_end_is_slowed_down_after_a_minute() -> None:
    first, second, *later = Text().repeat(5, CHATTER, logging.INFO, "tick", every=0.02)

    assert first == 3000
    assert second < 1000
    assert all(count <= 1 for count in later)
