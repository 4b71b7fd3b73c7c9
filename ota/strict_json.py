"""Strict reading of untrusted JSON: no duplicate keys, no NaN, bounded size and depth, no unknown members.

`find_object` alone is not strict.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from ota.errors import Unsuitable, Untrusted

#: nesting of the deepest document, with room for new ones
MOST_DEPTH = 16
#: the largest integer that a double holds exactly
MOST_INTEGER = 2**53

Value = TypeVar("Value")
Complaint = Callable[[str], Exception]


def parse(data: bytes, what: str, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Args:
        what: the name of the document, for messages.

    Raises:
        Untrusted: it is longer than `most_bytes`, or no strict JSON object.
    """
    if len(data) > most_bytes:
        raise Untrusted(f"{what} has {len(data)} bytes, expected at most {most_bytes}")

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(found)
        if len(result) != len(found):
            twice = next(name for name, count in Counter(name for name, _ in found).items() if count > 1)
            raise Untrusted(f"{what} has the member {twice!r} twice")
        return result

    def constant(text: str) -> NoReturn:
        raise Untrusted(f"{what} contains {text}, which is not a JSON number")

    def fraction(text: str) -> float:
        found = float(text)
        if not math.isfinite(found):
            raise Untrusted(f"{what} contains {text[:40]}, which is too large a number")
        return found

    if _depth(data) > MOST_DEPTH:
        raise Untrusted(f"{what} is nested deeper than {MOST_DEPTH} levels")
    try:
        found = json.loads(data, object_pairs_hook=pairs, parse_constant=constant, parse_float=fraction)
    except (ValueError, RecursionError) as error:
        raise Untrusted(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Untrusted(f"{what} is not a JSON object")
    return found


def find_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`; None = there is none. For answers of programs, and for files of this device,
    whose members the caller judges one by one.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def to_canonical_json(value: object) -> bytes:
    """Return the canonical bytes of a document: sorted keys, no blanks, a newline at the end."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _depth(data: bytes) -> int:
    """Return the nesting depth of brackets outside of strings."""
    deepest = depth = 0
    # a string that does not end is one piece: the search would begin again at each of its quotes
    bare = re.sub(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', b"", data, flags=re.DOTALL)
    for byte in re.findall(rb"[\[\]{}]", bare):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class Members:
    """The members of a JSON object. Each is read once and by its type; `end` refuses members that were not read.

    Args:
        path: where the object is, for messages: `manifest det 17: variants[0]`.
        complain: makes the exception of a message.
    """

    def __init__(self, found: object, path: str, complain: Complaint = Untrusted) -> None:
        self._path, self._complain = path, complain
        if not isinstance(found, dict):
            raise complain(f"{path} is {_shown(found)}, expected an object")
        self._left: dict[str, Any] = dict(found)

    def end(self) -> None:
        """Refuse members that were not read. Names that begin with `x-` are for extensions, and ignored."""
        unknown = sorted(name for name in self._left if not name.startswith("x-"))
        if unknown:
            raise self._complain(f"{self._path} has the unknown member {unknown[0]!r}; a newer edge-ota may know it")

    def names(self) -> list[str]:
        """Return the names of the members that were not read yet."""
        return sorted(self._left)

    def has(self, name: str) -> bool:
        """Return whether the member exists and was not read yet."""
        return name in self._left

    def check_schema(self, known: int) -> None:
        """Refuse a document whose member `schema` is another number.

        Raises:
            Unsuitable: a newer edge-ota may read it.
        """
        schema = self.integer("schema")
        if schema != known:
            raise Unsuitable(
                f"{self._path} has schema {schema}, and this edge-ota reads {known}: update edge-ota first"
            )

    def text(self, name: str, default: str | None = None, *, most: int = 1024) -> str:
        """Return a string of printable characters."""
        value = self._take(name, default)
        if not isinstance(value, str) or len(value) > most or not (value.isprintable() or value == ""):
            self.refuse(name, value, f"expected a string of at most {most} printable characters")
        return value

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = MOST_INTEGER) -> int:
        """Return an integer within bounds."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(name, value, f"expected an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0, most: float = 1e15) -> float:
        """Return an integer or a fraction within bounds."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            self.refuse(name, value, f"expected a number from {least:g} to {most:g}")
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "expected true or false")
        return value

    def sha256(self, name: str) -> str:
        """Return a SHA-256 as 64 hexadecimal digits in lower case."""
        value = self._take(name, None)
        if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
            self.refuse(name, value, "expected a SHA-256: 64 hexadecimal digits in lower case")
        return value

    def array(self, name: str, default: list[Any] | None = None, *, most: int) -> list[Any]:
        """Return an array with at most `most` items."""
        value = self._take(name, default)
        if not isinstance(value, list) or len(value) > most:
            self.refuse(name, value, f"expected an array of at most {most} items")
        return value

    def objects(self, name: str, default: list[Any] | None = None, *, most: int) -> Iterator[Members]:
        """Yield the members of each object in an array."""
        for number, value in enumerate(self.array(name, default, most=most)):
            yield Members(value, f"{self._path}: {name}[{number}]", self._complain)

    def optional(self, name: str) -> Members | None:
        """Return the members of an object; None = it is null."""
        value = self._take(name, None)
        return None if value is None else Members(value, f"{self._path}: {name}", self._complain)

    def table(self, name: str, default: dict[str, Any] | None = None, *, most: int) -> dict[str, Any]:
        """Return an object whose keys are names."""
        value = self._take(name, default)
        if not isinstance(value, dict) or len(value) > most:
            self.refuse(name, value, f"expected an object of at most {most} members")
        if odd := [key for key in value if not key.isprintable()]:
            self.refuse(name, odd[0], "expected names of printable characters")
        return value

    def tables(self, name: str, default: dict[str, Any] | None = None, *, most: int) -> Iterator[tuple[str, Members]]:
        """Yield name and members of each object in an object."""
        for key, value in self.table(name, default, most=most).items():
            yield key, Members(value, f"{self._path}: {name}.{key}", self._complain)

    def texts(self, name: str, default: Mapping[str, str] | None = None, *, most: int) -> dict[str, str]:
        """Return an object whose values are strings."""
        value = self.table(name, None if default is None else dict(default), most=most)
        for key, text in value.items():
            if not isinstance(text, str) or len(text) > 1024 or not text.isprintable():
                self.refuse(f"{name}.{key}", text, "expected a string of at most 1024 printable characters")
        return value

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        """Raise an error about a member."""
        raise self._complain(f"{self._path}: {name} is {_shown(value)}, {expected}")

    def _take(self, name: str, default: Value | None) -> Any:
        if name in self._left:
            return self._left.pop(name)
        if default is None:
            raise self._complain(f"{self._path} lacks the member {name!r}")
        return default


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
