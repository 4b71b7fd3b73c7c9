"""Text of anybody's as one line for people."""

from __future__ import annotations

#: C0, DEL and C1: a terminal obeys all of them
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {10: "\\n"}


def one_line(text: str) -> str:
    """`text` with control characters escaped."""
    return text.translate(_ESCAPES)
