"""Names and versions as they come in URLs. Texts: triton-inference-server/server src/http_server.cc, common.cc."""

from __future__ import annotations

import unicodedata

from edge_serve.errors import InvalidArgument


def parse_version(text: str) -> int:
    """Return the version number that a request names; 0 is one, too.

    Raises:
        InvalidArgument: not a number, or not one of 63 bits.
    """
    try:
        version = int(text)
        if version >= 1 << 63:
            raise ValueError("out of range")
    except ValueError:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be "
            "an integral value > 0"
        ) from None
    if version < 0:
        raise InvalidArgument(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


def check_name(name: str) -> None:
    """Refuse names that could leave the repository, or that no answer could contain.

    Raises:
        InvalidArgument: empty, with path characters or control characters, or no text.
    """
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or name.strip() in (".", "..") or "\x00" in name:
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
    if not is_text(name):
        raise InvalidArgument(f"invalid model name {name!r}, model name must be UTF-8")
    if has_controls(name):
        raise InvalidArgument(f"invalid model name {name!a}, model name must not contain {CONTROLS}")


#: for messages
CONTROLS = "control characters, line separators or characters that change the direction of text"
#: those that change the direction of text: a name would be shown as another one
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def has_controls(name: str) -> bool:
    """Return whether a name has characters that would garble a line of a log or of a terminal."""
    return any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") or letter in _DIRECTIONS for letter in name)


def shown(name: str) -> str:
    """Return the name for a line of a log or of a terminal, escaped if it would garble that."""
    return ascii(name) if has_controls(name) else name


def is_text(name: str) -> bool:
    """Return whether a name can be written in UTF-8; a file name may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
