"""How the value of a setting is written: text in, value out, `ValueError` with what was found and what is expected."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from edge_serve.messages.line import one_line
from edge_serve.records import frozen

#: characters of a value that a message repeats
_SHOWN = 120
#: characters of a number, and of a regular expression, which takes a second to compile at a million
_LONGEST_NUMBER, _LONGEST_PATTERN = 400, 10_000
#: bytes of a path or an address (PATH_MAX)
_LONGEST_PATH = 4095


def shown(text: str) -> str:
    """Return `text` as a message repeats it: one line, and the end of a long one left out."""
    if len(text) > _SHOWN:
        return one_line(f"{text[:_SHOWN]}... ({len(text)} characters)")
    return one_line(text)


@frozen
class SettingKind:
    """One way to write values.

    Attributes:
        metavar: stands for the value in `--help`.
        parse: raises ValueError.
        bare: the flag may stand alone, and then means `true`.
    """

    metavar: str
    parse: Callable[[str], Any]
    bare: bool = False


def parse_boolean(text: str) -> bool:
    """Parse one of Triton's booleans, in any case."""
    match text.lower():
        case "true" | "on" | "1":
            return True
        case "false" | "off" | "0":
            return False
    raise ValueError(f"found '{shown(text)}', expected true or false")


def integer(low: int = -(2**63), high: int = 2**63 - 1) -> SettingKind:
    """Return the kind of a whole number from `low` to `high`, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(f"found '{shown(text)}', expected an integer")
        value = int(text)
        _check_range(value, low, high)
        return value

    return SettingKind("integer", parse)


def number(low: float = 0.0, high: float = 1e18) -> SettingKind:
    """Return the kind of a decimal number from `low` to `high`, both included."""

    def parse(text: str) -> float:
        try:
            value = float(text if len(text) <= _LONGEST_NUMBER else "")
        except ValueError as error:
            raise ValueError(f"found '{shown(text)}', expected a number") from error
        _check_range(value, low, high)
        return value

    return SettingKind("number", parse)


def choice(*words: str) -> SettingKind:
    """Return the kind of a value that is one of `words`, in any case."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"found '{shown(text)}', expected one of {', '.join(words)}")
        return known[text.lower()]

    return SettingKind("|".join(words), parse)


def _check_range(value: float, low: float, high: float) -> None:
    # written so that NaN is refused too
    if not value >= low:
        raise ValueError(f"found {value}, expected at least {low}")
    if not value <= high:
        raise ValueError(f"found {value}, expected at most {high}")


def _parse_pattern(text: str) -> re.Pattern[str]:
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(
            f"found '{shown(text)}', expected a regular expression of at most {_LONGEST_PATTERN} characters"
        )
    exact = text.removeprefix("(?-i)")
    try:
        # header names are case-insensitive; Triton puts (?i) in front, which Python takes once, and (?-i) never
        return re.compile(text if exact == text else f"(?-i:{exact})", re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"found '{shown(text)}', expected a regular expression: {error}") from error


def _parse_name(text: str) -> str:
    if not 0 < len(text) <= _LONGEST_PATH or any(character.isspace() or character == "/" for character in text):
        raise ValueError(f"found '{shown(text)}', expected a name without spaces and slashes")
    return text


def _parse_filled(expected: str, text: str) -> str:
    if not text:
        raise ValueError(f"found nothing, expected {expected}")
    if len(os.fsencode(text)) > _LONGEST_PATH or "\0" in text:
        raise ValueError(f"found '{shown(text)}', expected {expected} of at most {_LONGEST_PATH} bytes without NUL")
    return text


#: how to copy models from a cloud store, by the scheme of its URLs
_COPY = {
    "s3": "aws s3 sync {url} models",
    "gs": "gcloud storage rsync --recursive {url} models",
    "as": "rclone copy <remote>:<container>/<path> models",
}


def _parse_repository(text: str) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and scheme in _COPY:
        raise ValueError(
            f"found '{shown(text)}', expected a directory of this device: edge-serve does not read cloud storage; copy "
            f"the models first ({_COPY[scheme].format(url=shown(text))}), then give --model-repository=models"
        )
    path = str(PATH.parse(text))
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:  # workers get paths in JSON
        raise ValueError(
            f"found '{shown(ascii(path)[1:-1])}', expected a path in UTF-8: rename the directory"
        ) from None
    return path


TEXT = SettingKind("string", str)
FILLED = SettingKind("string", partial(_parse_filled, "a value"))
NAME = SettingKind("name", _parse_name)
PATH = SettingKind("path", partial(_parse_filled, "a path"))
REPOSITORY = SettingKind("path", _parse_repository)
BOOLEAN = SettingKind("boolean", parse_boolean)
FLAG = SettingKind("", parse_boolean, bare=True)
PORT = integer(0, 65535)
COUNT = integer(0)
POSITIVE = integer(1)
#: Triton's ParseIntBoolOption
LEVEL = SettingKind("integer", lambda text: COUNT.parse({"true": "1", "false": "0"}.get(text.lower(), text)))
SECONDS = number(0)
PATTERN = SettingKind("regex", _parse_pattern)
