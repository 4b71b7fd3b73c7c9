"""The decisions in docs/adr: headings, date, status; the paths whose lines they count; their measurements."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.adr import cost, figures

ADR = Path(__file__).parents[2] / "docs/adr"
DECISIONS = sorted(ADR.glob("[0-9]*.md"))
HEADINGS = ["Context", "Decision", "Alternatives", "Consequences", "Cost"]
_STATUS = re.compile(r"^Date: 20\d\d-\d\d-\d\d\. Status: (accepted|superseded by|withdrawn)", re.MULTILINE)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_has_date_status_and_headings(page: Path) -> None:
    text = page.read_text()

    assert text.startswith(f"# {int(page.stem[:4])}. ")
    assert _STATUS.search(text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS


def test_cost_counts_paths_that_exist() -> None:
    assert [path for number in cost.PATHS for path in cost.missing(number)] == []
    assert [number for number in cost.PATHS if not list(ADR.glob(f"{number:04}-*.md"))] == []


def test_cost_counts_code_and_tests() -> None:
    code, tests = cost.cost(4)

    assert code > 0
    assert tests > 0


def test_docstrings_comments_and_blank_lines_are_not_code() -> None:
    source = '"""Module."""\n\n# reason\ndef f() -> str:\n    """Return a text."""\n    return """a\nb"""\n'

    assert cost.code_lines(source) == 3


@pytest.mark.parametrize("name", ["arenas", "frames", "grpc", "http2", "packets", "sending"])
def test_measurement_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def once(action: Callable[[], object], times: int) -> float:
        action()
        return 1.0

    monkeypatch.setattr(figures, "microseconds", once)

    assert all(value > 0 for value in figures.MEASUREMENTS[name]().values())
