"""Error texts in tests: Triton's own sentence comes first, and our advice may follow it."""

from __future__ import annotations


def without_advice(message: str, triton: str) -> str:
    """Return Triton's part of `message` when it is `triton`, else the whole."""
    rest = message.removeprefix(triton)
    is_advice = rest.startswith("; ") or (triton.endswith((".", "\n")) and rest[:1].isspace())
    return triton if rest != message and (not rest or is_advice) else message
