"""The verdict on a replay: unlisted failures fail, and so do listed steps that pass."""

from __future__ import annotations

from typing import Any

from .replay import exceptions_in, judge

PAGE = """
| case | step | reason |
|---|---|---|
| `metrics_fresh` | 0 | a newer metric |
| `names_odd` | all | decoded here |
| `other_tag` | 3 | not replayed now |
"""


def result(case: str, step: int, ok: bool, advisory: bool = False) -> dict[str, Any]:
    return {"case": case, "step": step, "ok": ok, "advisory": advisory, "fails": [] if ok else ["wrong"]}


def test_rows_are_read() -> None:
    assert exceptions_in(PAGE) == {
        ("metrics_fresh", "0"): "a newer metric",
        ("names_odd", "all"): "decoded here",
        ("other_tag", "3"): "not replayed now",
    }


def test_failures_are_excused_by_their_row_only() -> None:
    results = [
        result("metrics_fresh", 0, False),
        result("metrics_fresh", 1, False),
        result("names_odd", 4, False),
        result("plain", 0, True),
        result("advice", 0, False, advisory=True),
    ]
    verdict = judge(results, exceptions_in(PAGE))
    assert verdict.passed == 1
    assert verdict.failed == ["metrics_fresh [1]: wrong"]
    assert len(verdict.excused) == 2
    assert verdict.stale == []


def test_a_row_whose_step_passes_is_stale() -> None:
    verdict = judge([result("metrics_fresh", 0, True), result("names_odd", 0, False)], exceptions_in(PAGE))
    assert verdict.stale == ["metrics_fresh [0]"]
