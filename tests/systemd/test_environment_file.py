"""The syntax of EnvironmentFile=: what is set is what systemd sets, and what systemd passes over is reported."""

from __future__ import annotations

import pytest

from edge_serve.systemd.environment_file import parse_environment_file

#: texts and what they set; tests/system compares them with the systemd of each release
CASES: list[tuple[str, dict[str, str]]] = [
    ("A=1\nB=2\n", {"A": "1", "B": "2"}),
    ("A=1", {"A": "1"}),
    ("A=", {"A": ""}),
    ("  A = 1  \n", {"A": "1"}),
    ("# A=1\n; B=2\nC=3 # no comment\n", {"C": "3 # no comment"}),
    ("A='1 2'\nB=\"3 4\"  \n", {"A": "1 2", "B": "3 4"}),
    ("A='1'\"2\" 3\n", {"A": "123"}),
    ('A=1"2"\n', {"A": '1"2"'}),
    ("A=1\\\n2\nB=3\n", {"A": "12", "B": "3"}),
    ("A=a\\ b\\\\c\n", {"A": "a b\\c"}),
    ("A=a \\ \n", {"A": "a  "}),
    ('A="a\\"b\\$c\\d"\n', {"A": 'a"b$c\\d'}),
    ('A="a\\\nb"\n', {"A": "ab"}),
    ("A='a\\b'\n", {"A": "a\\b"}),
    ('A="1\nB=2\n', {"A": "1\nB=2\n"}),
    ("A='1\nB=2'\nC=3\n", {"A": "1\nB=2", "C": "3"}),
    ("word\nA=1\n", {"A": "1"}),
    ("export A=1\nB=2\n", {"B": "2"}),
    ("1A=1\nB=2\n", {"B": "2"}),
    ("A=1\nA=2\n", {"A": "2"}),
    ("A=ü\r\nB=2\r\n", {"A": "ü", "B": "2"}),
    ("A=a=b;c\n", {"A": "a=b;c"}),
    ("\\A=1\nB=1\\", {"B": "1"}),
    ("", {}),
]


NAMES = "expected letters, digits and _ (no `export`): the line is skipped"


@pytest.mark.parametrize(("text", "values"), CASES)
def test_assignments_are_read_as_systemd_reads_them(text: str, values: dict[str, str]) -> None:
    assert parse_environment_file(text.encode()).values == values


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'A=1\nB="2\nC=3\n', (2, 'the quote " is not closed: the rest of the file becomes the value of B')),
        (b"A='1\nB=2'\n", (1, "the quote ' is closed in line 2, all between is the value of A")),
        (b"A=1\n\nword\n", (3, "found 'word', expected NAME=value: the line is skipped")),
        (b"export A=1\n", (1, f"found the name 'export A', {NAMES}")),
        (b"A=1\nB=\xff\n", (2, "found a byte that is not UTF-8: systemd ignores the whole file")),
        (b"A=1\nB=\0\n", (2, "found a NUL character: systemd ignores the whole file")),
        (b"A=1\\\n2\nB='\n", (3, "the quote ' is not closed: the rest of the file becomes the value of B")),
    ],
)  # fmt: skip
def test_lines_that_systemd_ignores_are_reported(data: bytes, problem: tuple[int, str]) -> None:
    found = parse_environment_file(data)

    assert found.problems[0] == problem
    if b"\xff" in data or b"\0" in data:
        assert found.values == {}


def test_a_sound_file_has_no_problems() -> None:
    assert parse_environment_file(b"# settings\n\nA=1\nB='2'\n").problems == []
