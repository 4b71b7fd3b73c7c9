"""Names and versions as they come in URLs. Texts: triton-inference-server/server src/http_server.cc, common.cc."""

from __future__ import annotations

from edge_serve.errors import InvalidArgument


def parse_version(text: str) -> int:
    """Return the version number that a request names. No model has the version 0, but it is a number.

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
    """Refuse names that could leave the repository, or that no answer could tell.

    Raises:
        InvalidArgument: empty, with path characters, or no text.
    """
    if not name.strip():
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or name.strip() == ".." or "\x00" in name:
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
    if not is_text(name):
        raise InvalidArgument(f"invalid model name {name!r}, model name must be UTF-8")


def is_text(name: str) -> bool:
    """Whether it can be written in UTF-8; what the system calls a file may be any bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
