"""Mistakes in `edge-serve.toml`: what was found, what was expected, and on which line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: the file on the boot partition
FILE = "edge-serve.toml"
#: characters of a value that a message quotes
_MOST_QUOTED = 60


class Mistake(NamedTuple):
    """A mistake. `line` counts from 1; 0 = the whole file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"{FILE}, line {self.line}: {self.text}" if self.line else f"{FILE}: {self.text}"


class Refused(Exception):
    """The file is not accepted."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = sorted(set(mistakes))
        super().__init__("; ".join(map(str, self.mistakes)))


def quoted(value: object) -> str:
    """Return a value as a message quotes it: short, and on one line."""
    text = repr(value)
    return text if len(text) <= _MOST_QUOTED else text[: _MOST_QUOTED - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?`, or ""."""
    import difflib  # for mistakes only

    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""
