"""Every decision in docs/adr has the same headings, a date, and a status, and the paths whose lines it counts exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.adr import cost

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


@pytest.mark.parametrize("number", cost.PATHS)
def test_cost_counts_paths_that_exist(number: int) -> None:
    code, tests = cost.cost(number)

    assert code + tests > 0
    assert list(ADR.glob(f"{number:04}-*.md"))


def test_docstrings_comments_and_blank_lines_are_not_code() -> None:
    source = '"""Module."""\n\n# reason\ndef f() -> str:\n    """Return a text."""\n    return """a\nb"""\n'

    assert cost.code_lines(source) == 3
