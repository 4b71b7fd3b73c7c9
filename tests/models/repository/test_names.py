"""Names and versions as they come in URLs."""

from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.models.repository.names import check_name, parse_version


@pytest.mark.parametrize("text", ["-1", "x", "1.5", str(1 << 63), ""])
def test_versions_are_positive_numbers(text: str) -> None:
    with pytest.raises(InvalidArgument, match="version should be an integral value > 0"):
        parse_version(text)


@pytest.mark.parametrize("name", ["", " ", ".", " . ", "..", " ..", "../m", "a/b", "a\\b", "a\x00b", "caf\udce9"])
def test_names_that_could_leave_the_repository_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must not contain path|cannot be empty|must be UTF-8"):
        check_name(name)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\x7f", "a\x85", "a\u2028b", "gpj.\u202eexe", "a\u2066b"])
def test_names_that_would_garble_a_line_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must not contain control characters"):
        check_name(name)


def test_names_may_have_dots_dashes_blanks_and_letters_of_any_script() -> None:
    for name in (
        "...",
        "..m",
        "m..1",
        "m.1",
        ".m",
        "-rf",
        "a b",
        "caf\u00e9",
        "\u0645\u06cc\u200c\u062e",
        "\U0001f600",
    ):
        check_name(name)
