"""Reads `edge-serve.toml` and parses it: a text that an unknown editor wrote to a FAT partition."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from image.device import files
from image.device.provision.lines import KeyPath, Place, places
from image.device.provision.mistakes import FILE, Mistake, Refused

MOST_BYTES = 64 * 1024
#: nested values need recursion, and each part of a dotted name memory for all parts before it
_MOST_LEVELS = 100
# strings and comments as tomllib divides them; one that has no end extends as far as possible, so the time is linear
_QUOTED = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\[^\n]|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*",
    re.DOTALL,
)
_BOM = b"\xef\xbb\xbf"
_EXPECTED = "expected a text file with at most 64 KiB"


class Parsed(NamedTuple):
    """A text without mistakes of syntax.

    Attributes:
        text: as read, without a byte order mark.
        places: of each key.
    """

    text: str
    values: dict[str, Any]
    places: dict[KeyPath, Place]

    def line(self, *path: str | int) -> int:
        """Return the line of a key; that of the nearest table above for a key that is missing."""
        while path:
            if (place := self.places.get(path)) is not None:
                return place.line
            path = path[:-1]
        return 0


def read(folder: Path) -> bytes | None:
    """Return the bytes of the file in a boot partition; None if there is none.

    Raises:
        Refused: it cannot be read, or is too long.
    """
    path = folder / FILE
    try:
        return files.read(path, MOST_BYTES)
    except FileNotFoundError:
        _hidden_suffix(folder)
        return None
    except files.TooLong:
        size = path.stat().st_size
        raise Refused([Mistake(0, f"found {size} bytes, {_EXPECTED}; name certificates and keys as files")]) from None
    except files.NotRegular as error:
        raise Refused([Mistake(0, f"found {error}, {_EXPECTED}; remove it, and copy the file again")]) from None
    except OSError as error:
        text = f"cannot be read: {error.strerror}; check the boot partition on another computer"
        raise Refused([Mistake(0, text)]) from None


def _hidden_suffix(folder: Path) -> None:
    """Find `edge-serve.toml.txt`: some editors add a suffix, and some file managers do not show it.

    Raises:
        Refused: there is one, or the partition cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        text = f"the boot partition cannot be read: {error.strerror}; check it on another computer"
        raise Refused([Mistake(0, text)]) from None
    for name in names:
        if re.fullmatch(r"edge-serve\.(toml\.)?(txt|toml)", name.lower()):
            raise Refused([Mistake(0, f"found {name}, expected {FILE}: rename the file")])


def parse(data: bytes) -> Parsed:
    """Parse the text.

    Raises:
        Refused: it is not UTF-8, or not TOML.
    """
    import tomllib  # type: ignore[import-not-found, unused-ignore]  # Python 3.11

    text = _decode(data)
    try:
        if _deep(text):
            raise RecursionError
        values = tomllib.loads(text)
        if _levels(values) > _MOST_LEVELS:
            raise RecursionError
        return Parsed(text, values, places(text))
    except tomllib.TOMLDecodeError as error:
        raise Refused([_syntax(str(error), text)]) from None
    except RecursionError:
        raise Refused([Mistake(0, "found lists or tables nested too deeply, expected a table of keys")]) from None


def _deep(text: str) -> bool:
    """Return whether a line has so many brackets or dots that parsing it could exhaust the stack or the memory."""
    lines = _QUOTED.sub("", text).split("\n")
    return any(max(line.count("[") + line.count("{"), line.count(".")) > _MOST_LEVELS for line in lines)


def _levels(values: object) -> int:
    """Return how deeply values are nested, without recursion."""
    levels, level = 0, [values]
    while level:
        levels += 1
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for group in inner for one in group]
    return levels


def _decode(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Refused([Mistake(1, "found UTF-16, expected UTF-8: save the file as UTF-8")])
    data = data.removeprefix(_BOM)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = f"found the byte 0x{data[error.start]:02x}, expected UTF-8: save the file as UTF-8"
        raise Refused([Mistake(line, text)]) from None


def _syntax(message: str, text: str) -> Mistake:
    match = re.search(r" \(at line (\d+), column (\d+)\)", message)
    reason = message[: match.start()] if match else message.replace(" (at end of document)", "")
    line = int(match[1]) if match else text.count("\n") + 1
    hint = 'expected lines such as name = "value"; put quotes around text'
    where = f" (column {match[2]})" if match else " (end of the file)"
    return Mistake(line, f"{reason}{where}; {hint}")
