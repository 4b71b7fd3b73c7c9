"""Request headers that become string parameters of the request (`--http-header-forward-pattern`)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from edge_serve.errors import InvalidArgument
from edge_serve.protocol.v2.infer_header import RESERVED


def compile_pattern(text: str) -> re.Pattern[str] | None:
    """Compile the pattern; None for "". It ignores case unless it starts with `(?-i)`, as in RE2.

    Raises:
        InvalidArgument: `text` is not a regular expression.
    """
    if not text:
        return None
    exact = text.startswith("(?-i)")
    try:
        return re.compile(text.removeprefix("(?-i)"), 0 if exact else re.IGNORECASE)
    except re.error as error:
        raise InvalidArgument(f"'{text}' is not a regular expression for header names: {error}") from error


def forwarded(headers: Iterable[tuple[str, str]], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the headers whose names contain a match, by their names as received.

    Raises:
        InvalidArgument: a reserved name matches.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        if pattern.search(name) is None:
            continue
        if name in RESERVED or name.startswith("triton_"):
            raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        found[name] = value
    return found
