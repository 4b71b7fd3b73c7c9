"""Where a model's own code is: of the calls that lead to a place in Python, the innermost one outside of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

#: files of libraries, where the model's own line is more telling
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|^<")
_OWN = str(Path(__file__).parents[2])


def own_place(calls: Iterable[tuple[str, int | str, str]]) -> str:
    """Return `in FUNCTION, FILE line N`; "" = no call is of the model's own code.

    Args:
        calls: file, line, and function, innermost first.
    """
    for file, line, function in calls:
        if not _LIBRARY.search(file) and not file.startswith(_OWN):
            return f"in {function}, {file} line {line}"
    return ""


def calls_of(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    """Yield the calls that led to a frame, innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
