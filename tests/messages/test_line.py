"""Anybody's text as one line."""

from __future__ import annotations

import pytest

from edge_serve.messages.line import one_line


@pytest.mark.parametrize("code", [*range(32), *range(127, 160)])
def test_no_control_character_reaches_a_terminal(code: int) -> None:
    told = one_line(f"a{chr(code)}b")

    assert told == (r"a\nb" if code == 10 else rf"a\x{code:02x}b")


def test_other_characters_are_left_alone() -> None:
    assert one_line("ä → 世 \xa0~ \\") == "ä → 世 \xa0~ \\"
