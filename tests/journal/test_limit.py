"""How many like lines pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_serve.journal.limit import Limiter


def limiter(**settings: float) -> Limiter[str]:
    return Limiter(burst=3, per_second=1.0, summary_seconds=5.0, **settings)  # type: ignore[arg-type]


def test_a_burst_passes_and_then_one_a_second() -> None:
    lines = limiter()

    assert [lines.take("a", str(i), 100.0) for i in range(5)] == [True, True, True, False, False]
    assert lines.take("a", "5", 101.0)
    assert not lines.take("a", "6", 101.0)


def test_what_did_not_pass_is_told_after_a_while_with_the_last_of_it() -> None:
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


def test_all_of_it_is_told_at_the_end() -> None:
    lines = limiter()
    for i in range(4):
        lines.take("a", str(i), 100.0)

    assert lines.due(100.0, all=True) == [(1, "3")]


def test_a_group_that_is_forgotten_is_told_first() -> None:
    lines = limiter(most_groups=2)
    for i in range(5):
        lines.take("a", str(i), 100.0)
    lines.take("b", "x", 100.0)
    lines.take("c", "x", 100.0)

    assert lines.due(100.0) == [(2, "4")]
    assert lines.take("a", "again", 100.0)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 3)), max_size=200))
def test_each_line_passes_or_is_counted(steps: list[tuple[str, float]]) -> None:
    lines: Limiter[int] = Limiter(burst=2, per_second=0.5, summary_seconds=1.0, most_groups=3)
    now, passed, told = 10.0, 0, 0
    for i, (key, pause) in enumerate(steps):
        now += pause
        passed += lines.take(key, i, now)
        told += sum(count for count, _ in lines.due(now))
    told += sum(count for count, _ in lines.due(now, all=True))

    assert passed + told == len(steps)
