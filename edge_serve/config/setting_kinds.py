"""How the value of a setting is written: text in, value out, `ValueError` with what was found and what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
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
    """Triton's booleans, in any case."""
    match text.lower():
        case "true" | "on" | "1":
            return True
        case "false" | "off" | "0":
            return False
    raise ValueError(f"found '{text}', expected true or false")


def integer(low: int = -(2**63), high: int = 2**63 - 1) -> Kind:
    """A whole number from `low` to `high`, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(f"found '{text}', expected an integer")
        value = int(text)
        _check_range(value, low, high)
        return value

    return Kind("integer", parse)


def number(low: float = 0.0, high: float = 1e18) -> Kind:
    """A decimal number from `low` to `high`, both included."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError as error:
            raise ValueError(f"found '{text}', expected a number") from error
        _check_range(value, low, high)
        return value

    return Kind("number", parse)


def choice(*words: str) -> Kind:
    """One of `words`, in any case."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"found '{text}', expected one of {', '.join(words)}")
        return known[text.lower()]

    return Kind("|".join(words), parse)


def _check_range(value: float, low: float, high: float) -> None:
    # written so that NaN is refused too
    if not value >= low:
        raise ValueError(f"found {value}, expected at least {low}")
    if not value <= high:
        raise ValueError(f"found {value}, expected at most {high}")


def _parse_pattern(text: str) -> re.Pattern[str]:
    exact = text.removeprefix("(?-i)")
    try:
        # header names are case-insensitive; Triton puts (?i) in front, which Python takes once, and (?-i) never
        return re.compile(text if exact == text else f"(?-i:{exact})", re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"found '{text}', expected a regular expression: {error}") from error


def _parse_name(text: str) -> str:
    if not text or any(character.isspace() or character == "/" for character in text):
        raise ValueError(f"found '{text}', expected a name without spaces and slashes")
    return text


def _parse_filled(text: str) -> str:
    if not text:
        raise ValueError("found nothing, expected a value")
    return text


TEXT = Kind("string", str)
FILLED = Kind("string", _parse_filled)
NAME = Kind("name", _parse_name)
PATH = Kind("path", _parse_filled)
BOOLEAN = Kind("boolean", parse_boolean)
FLAG = Kind("", parse_boolean, bare=True)
PORT = integer(0, 65535)
COUNT = integer(0)
POSITIVE = integer(1)
SECONDS = number(0)
PATTERN = Kind("regex", _parse_pattern)
