"""The parameters of a model's configuration, and values read from text as Triton's backends do (backend_common.cc).

Worker's side: the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_serve.errors import InvalidArgument

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def parameters_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each of a configuration's `parameters`."""
    return {key: str(value.get("string_value", "")) for key, value in (config.get("parameters") or {}).items()}


def integer(text: str) -> int:
    """Return a number. Raises InvalidArgument."""
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgument(f"failed to convert '{text}' to integral number") from error


def unsigned(text: str) -> int:
    """Return a number of bytes. Raises InvalidArgument."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"failed to convert '{text}' to unsigned long long integral number")
    return int(text)


def boolean(text: str) -> bool:
    """Return a truth value. Raises InvalidArgument."""
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise InvalidArgument(f"failed to convert '{text}' to boolean")
    return value
