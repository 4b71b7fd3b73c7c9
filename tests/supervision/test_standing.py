"""The status line."""

from __future__ import annotations

import pytest

from edge_serve.models.control.records import ModelSummary
from edge_serve.supervision.standing import status_line


def summaries(**words: str) -> list[ModelSummary]:
    return [ModelSummary(name, word) for name, word in words.items()]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (summaries(), "looking for models"),
        (summaries(a="loading"), "0 of 1 model ready, loading a"),
        (summaries(a="ready", b="ready", c="loading", d="failed"), "1 model failed: d; 2 serve, loading c"),
        (summaries(a="ready", gone="unloaded"), "1 model ready"),
        (
            summaries(a="loading", b="loading", c="loading", d="loading", e="loading", f="loading"),
            "0 of 6 models ready, loading a b c d and 2 more",
        ),
        (summaries(a="restarting", b="ready"), "1 of 2 models ready, restarting a"),
    ],
)
def test_status_lines(found: list[ModelSummary], line: str) -> None:
    assert status_line(found, loaded=False) == line


def test_safe_mode_comes_first() -> None:
    assert (
        status_line(summaries(a="ready"), loaded=True, safe="left out det") == "safe mode: left out det; 1 model ready"
    )


def test_required_models_that_are_not_ready_and_models_that_cannot_be_read_are_told_with_their_reasons() -> None:
    found = [ModelSummary("a", "ready"), ModelSummary("bad", "failed", "no\nlicence")]
    lacking = [ModelSummary("bad", "failed", "no\nlicence"), ModelSummary("god", "absent", "not in the repository")]
    unread = {"locked": "Permission denied: " + "x" * 300}
    line = status_line(found, loaded=True, lacking=lacking, unread=unread)
    assert line == (
        f"2 models failed: required bad (no licence), locked (Permission denied: {'x' * 138}...); 1 serves; "
        "required god: not in the repository"
    )
    assert status_line(found, loaded=False, lacking=lacking) == "1 model failed: bad (no licence); 1 serves", (
        "they may come"
    )
    assert status_line(found, loaded=True, safe="left out bad", lacking=lacking).endswith(
        "; 1 model failed: bad (no licence); 1 serves"
    )
    many = dict.fromkeys("abcdef", "?")
    assert status_line([], loaded=True, unread=many) == (
        "6 models failed: a (?), b (?), c (?), d (?) and 2 more; 0 serve"
    )


def test_a_version_that_failed_beside_one_that_serves_costs_no_model() -> None:
    found = [ModelSummary("iris", "failed", "version 2: Internal: x\n\nAt:\n  /models/iris/2", serves=True)]
    assert status_line(found, loaded=True) == "1 model failed: iris (version 2: Internal: x); 1 serves"
