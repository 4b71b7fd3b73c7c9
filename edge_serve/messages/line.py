"""Text of anybody's as one line for people."""

from __future__ import annotations

#: C0, DEL and C1: a terminal obeys all of them
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {10: "\\n"}


def one_line(text: str) -> str:
    """`text` with control characters escaped."""
    return text.translate(_ESCAPES)


def shortened(text: str, most: int = 200) -> str:
    """`text` in one line of at most `most` characters."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."
