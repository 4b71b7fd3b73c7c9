"""The syntax of systemd's EnvironmentFile= (systemd.exec(5)), with what systemd accepts in silence reported by line.

systemd ends no service because of such a file: a line without `=` is skipped, and a quote that is not closed takes the
rest of the file into one value. So the variables that follow are not set, and nothing says so.
"""

from __future__ import annotations

import re
from dataclasses import field
from enum import Enum, auto

from edge_serve.records import slotted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK, _NEWLINE = " \t\n\r", "\n\r"
#: in double quotes, a backslash escapes these characters, and stays before others
_ESCAPED_IN_QUOTES = '"\\`$'


@slotted
class EnvironmentFile:
    """The variables that one file sets.

    Attributes:
        problems: line numbers, and what is wrong there.
    """

    values: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)


class _State(Enum):
    BEFORE_NAME = auto()
    NAME = auto()
    BEFORE_VALUE = auto()
    VALUE = auto()
    SINGLE = auto()
    DOUBLE = auto()
    COMMENT = auto()


def parse_environment_file(data: bytes) -> EnvironmentFile:
    """Return the variables that systemd would set, and what it would skip or swallow."""
    found = EnvironmentFile()
    try:
        text, at, problem = data.decode(), data.find(b"\0"), "a NUL character"
    except UnicodeDecodeError as error:
        text, at, problem = "", error.start, "a byte that is not UTF-8"
    if at < 0:
        _Reader(found).read(text)
    else:
        line = data[:at].count(b"\n") + 1
        found.problems.append((line, f"found {problem}: systemd ignores the whole file"))
    return found


#: where a backslash takes the next character with it
_WITH_ESCAPES = (_State.BEFORE_VALUE, _State.VALUE, _State.DOUBLE, _State.COMMENT)


class _Reader:
    """The state between two characters of a file."""

    def __init__(self, found: EnvironmentFile) -> None:
        self._found = found
        self._state = _State.BEFORE_NAME
        self._name = ""
        self._value: list[str] = []
        #: length of the value without the blanks at its end, which count in quotes or behind a backslash only
        self._kept = 0
        self._line = self._name_line = self._quote_line = 1
        self._quote = ""

    def read(self, text: str) -> None:
        characters = iter(text)
        for character in characters:
            follows = ""
            if character == "\\" and self._state in _WITH_ESCAPES:
                follows = next(characters, "")
                self._escape(follows)
            else:
                self._take(character)
            self._line += (character == "\n") + (follows == "\n")
        if self._state in (_State.SINGLE, _State.DOUBLE):
            text = f"the quote {self._quote} is not closed: the rest of the file becomes the value of {self._name}"
            self._found.problems.append((self._quote_line, text))
        if self._state not in (_State.BEFORE_NAME, _State.COMMENT):
            self._end_line()

    def _escape(self, follows: str) -> None:
        """Take a backslash and the character behind it."""
        if self._state is _State.COMMENT:
            if follows in _NEWLINE:  # since systemd 254; before, the next line belonged to the comment
                self._state = _State.BEFORE_NAME
        elif self._state is _State.DOUBLE:
            self._append(follows if follows in _ESCAPED_IN_QUOTES else "" if follows == "\n" else "\\" + follows)
        else:
            self._state = _State.VALUE
            self._append("" if follows in _NEWLINE else follows)

    def _take(self, character: str) -> None:
        match self._state:
            case _State.BEFORE_NAME if character in "#;":
                self._state = _State.COMMENT
            case _State.BEFORE_NAME if character not in _BLANK:
                self._state, self._name, self._name_line = _State.NAME, character, self._line
            case _State.NAME if character == "=":
                self._state, self._name = _State.BEFORE_VALUE, self._name.rstrip(_BLANK)
            case _State.COMMENT if character in _NEWLINE:
                self._state = _State.BEFORE_NAME
            case _State.NAME | _State.BEFORE_VALUE | _State.VALUE if character in _NEWLINE:
                self._end_line()
            case _State.NAME:
                self._name += character
            case _State.BEFORE_VALUE if character in "'\"":
                self._state = _State.SINGLE if character == "'" else _State.DOUBLE
                self._quote, self._quote_line = character, self._line
            case _State.SINGLE | _State.DOUBLE if character == self._quote:
                self._close_quote()
            case _State.SINGLE | _State.DOUBLE:
                self._append(character)
            case _State.BEFORE_VALUE if character not in _BLANK:
                self._state = _State.VALUE
                self._append(character)
            case _State.VALUE:
                self._value.append(character)
                self._kept = self._kept if character in _BLANK else len(self._value)

    def _append(self, text: str) -> None:
        self._value.append(text)
        self._kept = len(self._value)

    def _close_quote(self) -> None:
        self._state = _State.BEFORE_VALUE
        if self._line > self._quote_line:
            text = f"the quote {self._quote} is closed in line {self._line}, all between is the value of {self._name}"
            self._found.problems.append((self._quote_line, text))

    def _end_line(self) -> None:
        """Set the variable of an assignment, or report the line."""
        value, name = "".join(self._value[: self._kept]), self._name
        if self._state is _State.NAME:
            text = f"found '{_cut(name)}', expected NAME=value: the line is skipped"
            self._found.problems.append((self._name_line, text))
        elif not _NAME.fullmatch(name):
            text = f"found the name '{_cut(name)}', expected letters, digits and _ (no `export`): the line is skipped"
            self._found.problems.append((self._name_line, text))
        else:
            self._found.values[name] = value
        self._state, self._name, self._value, self._kept = _State.BEFORE_NAME, "", [], 0


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
