"""The status line and when the service counts as started."""

from __future__ import annotations

import pytest

from edge_serve.models.records import Standing
from edge_serve.systemd.standing import Phase, has_started, status_line


def standings(**words: str) -> list[Standing]:
    return [Standing(name, word) for name, word in words.items()]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (standings(), "looking for models"),
        (standings(a="loading"), "0 of 1 model ready, loading a"),
        (standings(a="ready", b="ready", c="loading", d="failed"), "2 of 4 models ready, failed d, loading c"),
        (standings(a="ready", gone="unloaded"), "1 model ready"),
        (
            standings(a="loading", b="loading", c="loading", d="loading", e="loading", f="loading"),
            "0 of 6 models ready, loading a b c d and 2 more",
        ),
        (standings(a="restarting", b="ready"), "1 of 2 models ready, restarting a"),
    ],
)
def test_status_lines(found: list[Standing], line: str) -> None:
    assert status_line(Phase(loaded=False, ready=False), found) == line


def test_safe_mode_comes_first() -> None:
    phase = Phase(loaded=True, ready=False, safe="left out det")
    assert status_line(phase, standings(a="ready")) == "safe mode: left out det; 1 model ready"


@pytest.mark.parametrize(
    ("phase", "required", "started"),
    [
        (Phase(loaded=False, ready=False), [], False),
        (Phase(loaded=True, ready=True), [], True),
        (Phase(loaded=True, ready=True), ["a"], True),
        (Phase(loaded=True, ready=False), ["a"], False),
        (Phase(loaded=True, ready=False), [], True),  # what failed is told, the others serve
        (Phase(loaded=True, ready=False, safe="because"), ["a"], True),
        (Phase(loaded=False, ready=False, safe="because"), ["a"], False),
    ],
)
def test_started(phase: Phase, required: list[str], started: bool) -> None:
    assert has_started(phase, required) is started
