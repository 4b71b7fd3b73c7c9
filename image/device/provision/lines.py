"""Maps the keys of a TOML text to their lines. `tomllib` returns values without their places.

Reads text that `tomllib` has accepted, so it contains no errors.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: the names and list positions that lead to a value: ("server", "tokens", 0, "role")
KeyPath = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*[^,\]}#\s]")
_SKIPPED = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


class Place(NamedTuple):
    """The place of a key and its value in a text.

    Attributes:
        line: of the key, from 1.
        key: offset of the key; start, end: offsets of the value.
    """

    line: int
    key: int
    start: int
    end: int


def places(text: str) -> dict[KeyPath, Place]:
    """Return the place of each key, table, and list element."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.found: dict[KeyPath, Place] = {}
        self._tables: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip():
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _skip(self) -> bool:
        match = _SKIPPED.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at < len(self._text)

    def _header(self) -> KeyPath:
        start = self._at
        array = self._text.startswith("[[", start)
        self._at += 2 if array else 1
        names = self._key()
        self._at = self._text.index("]", self._at) + (2 if array else 1)
        path = self._resolve(names)
        if array:
            count = self._tables[path] = self._tables.get(path, -1) + 1
            path = (*path, count)
        self._note(path, start, start, self._at)
        return path

    def _resolve(self, names: tuple[str, ...]) -> KeyPath:
        """Return the path of a header: inside an array of tables it continues the newest element."""
        path: KeyPath = ()
        for name in names[:-1]:
            path = (*path, name)
            if path in self._tables:
                path = (*path, self._tables[path])
        return (*path, names[-1])

    def _key(self) -> tuple[str, ...]:
        names: list[str] = []
        while True:
            self._blanks()
            if self._text[self._at] in "\"'":
                start = self._at
                self._string()
                names.append(_unquoted(self._text[start : self._at]))
            elif match := _BARE.match(self._text, self._at):
                self._at = match.end()
                names.append(match[0])
            self._blanks()
            if self._text[self._at] != ".":
                return tuple(names)
            self._at += 1

    def _blanks(self) -> None:
        while self._text[self._at] in " \t":
            self._at += 1

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = (*table, *self._key())
        self._at += 1  # =
        self._blanks()
        self._value(path, start)

    def _value(self, path: KeyPath, key: int) -> None:
        start, first = self._at, self._text[self._at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._list(path)
        elif first == "{":
            self._inline_table(path)
        elif match := _SCALAR.match(self._text, self._at):
            self._at = match.end()
        self._note(path, key, start, self._at)

    def _list(self, path: KeyPath) -> None:
        self._at += 1
        count = 0
        while self._skip() and self._text[self._at] != "]":
            self._value((*path, count), self._at)
            count += 1
            self._skip()
            self._at += self._text[self._at] == ","
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._skip() and self._text[self._at] != "}":
            self._pair(path)
            self._skip()
            self._at += self._text[self._at] == ","
        self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        mark = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._at += len(mark)
        while not self._text.startswith(mark, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(mark)
        while len(mark) == 3 and self._text.startswith(quote, self._at):  # quotes before the closing ones
            self._at += 1

    def _note(self, path: KeyPath, key: int, start: int, end: int) -> None:
        place = Place(self._text.count("\n", 0, key) + 1, key, start, end)
        self.found[path] = place
        for length in range(1, len(path)):  # tables without a header of their own
            self.found.setdefault(path[:length], place)


def _unquoted(name: str) -> str:
    """Return a quoted name without its quotes and escapes: a name may be written in many ways."""
    if "\\" not in name or name[0] == "'":
        return name[1:-1]
    import tomllib  # type: ignore[import-not-found, unused-ignore]  # Python 3.11

    (key,) = tomllib.loads(f"{name} = 0")
    return str(key)
