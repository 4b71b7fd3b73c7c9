"""JSON as Triton reads it: RapidJSON's tokens, limits and error texts (common include/triton/common/triton_json.h).

`orjson` parses; the standard library's parser reads texts with NaN or Infinity, which RapidJSON accepts. A syntax or
type error is INTERNAL, hence HTTP 500, in Triton: clients compare these texts.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

import orjson

from edge_serve.errors import Unparsable, with_advice
from edge_serve.messages.tensors import Buffer

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

#: longer texts are not searched for the exact place of their error, which takes about 1 ms per 20 KB
_MAX_EXPLAINED = 65_536

#: bytes of a body that are checked to be text
_HEAD_BYTES = 256
_NO_TEXT = (
    "the body is not text: a file or binary tensors need the header Inference-Header-Content-Length, a compressed body "
    "needs Content-Encoding"
)
_NO_UTF8 = "JSON is UTF-8: send other bytes as binary data"


def parse(text: Buffer) -> Any:
    """Parse a JSON text.

    Raises:
        Internal: the text is not JSON; the message names the error and its offset in bytes.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raw = bytes(text)
        trimmed = _trim(raw)
        if trimmed != raw:
            return parse(trimmed)
        if b"NaN" in raw or b"Inf" in raw:
            try:
                return _parse_with_nan(raw)
            except (ValueError, RecursionError):
                pass
        message = "failed to parse the request JSON buffer: " + _explain(raw, error)
        raise Unparsable(with_advice(message, "" if _is_text(raw) else _NO_TEXT)) from None


def _trim(raw: bytes) -> bytes:
    """Return a text without the byte order mark and the NULs at its end that RapidJSON skips. Offsets do not change."""
    if raw.startswith(codecs.BOM_UTF8):
        raw = b" " * len(codecs.BOM_UTF8) + raw[len(codecs.BOM_UTF8) :]
    return raw.rstrip(b"\0")


def _is_text(raw: bytes) -> bool:
    """Return whether an invalid body may have been meant as JSON: it starts with a bracket, or is UTF-8."""
    if raw.lstrip()[:1] in (b"{", b"["):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw[:_HEAD_BYTES])
    except UnicodeDecodeError:
        return False
    return True


#: a string that does not end is one piece: the search would begin again at each of its quotes
_STRING_OR_INF = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|Inf(?!inity)', re.DOTALL)


def _parse_with_nan(raw: bytes) -> Any:
    text = raw.decode()
    if "Inf" in text:
        text = _STRING_OR_INF.sub(lambda m: m[1] or "Infinity", text)
    value = json.loads(text, parse_int=_parse_int, parse_float=_parse_float)
    if r"\ud" in text.lower():  # may hold half a surrogate pair, which no reply could carry
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _parse_int(digits: str) -> int | float:
    """Parse an integer; as in RapidJSON, one beyond 64 bits becomes a double. A long one would take quadratic time."""
    if len(digits) <= 20:
        number = int(digits)
        if INT64_MIN <= number <= UINT64_MAX:
            return number
    return _parse_float(digits)


def _parse_float(digits: str) -> float:
    """Parse a number; the texts NaN and Infinity do not come here.

    Raises:
        ValueError: it is too big for a double.
    """
    number = float(digits)
    if number - number:  # of an infinity, which is NaN
        raise ValueError
    return number


# The functions below find the error again, with RapidJSON's texts and offsets.

_SPACE = re.compile(rb"[ \t\n\r]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]*)?")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9a-fA-F]{4}")
_HIGH_SURROGATE = re.compile(rb"[dD][89abAB]")
_LOW_SURROGATE = re.compile(rb"[dD][c-fC-F]")


class _Fault(Exception):
    pass


def _explain(raw: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        if len(raw) <= _MAX_EXPLAINED:
            _scan(raw)
        raw.decode()
    except _Fault as fault:
        return str(fault)
    except UnicodeDecodeError as fault:
        return with_advice(f"Invalid encoding in string. at {fault.start}", _NO_UTF8 if _is_text(raw) else "")
    return f"{error.msg} at {error.pos}"


def _scan(raw: bytes) -> None:
    """Scan a document, with a stack of closing brackets instead of recursion."""
    at = _skip(raw, 0)
    if at == len(raw):
        raise _Fault(f"The document is empty. at {at}")
    stack: list[int] = []
    while True:
        at = _scan_opening(raw, at, stack)
        while stack:  # a value has ended
            at = _skip(raw, at)
            closing = stack[-1]
            if raw[at : at + 1] == b",":
                at = _skip(raw, at + 1)
                if closing == 0x7D:
                    at = _scan_name(raw, at)
                break
            if raw[at : at + 1] != bytes((closing,)):
                what = "'}' after an object member" if closing == 0x7D else "']' after an array element"
                raise _Fault(f"Missing a comma or {what}. at {at}")
            stack.pop()
            at += 1
        else:
            break
    at = _skip(raw, at)
    if at < len(raw):
        raise _Fault(f"The document root must not be followed by other values. at {at}")


def _skip(raw: bytes, at: int) -> int:
    found = _SPACE.match(raw, at)
    return found.end() if found else at


def _scan_opening(raw: bytes, at: int, stack: list[int]) -> int:
    """Scan a scalar, an empty container, or a container down to its first scalar."""
    while True:
        char = raw[at : at + 1]
        if char == b"{":
            at = _skip(raw, at + 1)
            if raw[at : at + 1] == b"}":
                return at + 1
            at = _scan_name(raw, at)
            stack.append(0x7D)
        elif char == b"[":
            at = _skip(raw, at + 1)
            if raw[at : at + 1] == b"]":
                return at + 1
            stack.append(0x5D)
        else:
            return _scan_scalar(raw, at, char)


def _scan_name(raw: bytes, at: int) -> int:
    if raw[at : at + 1] != b'"':
        raise _Fault(f"Missing a name for object member. at {at}")
    at = _skip(raw, _scan_string(raw, at))
    if raw[at : at + 1] != b":":
        raise _Fault(f"Missing a colon after a name of object member. at {at}")
    return _skip(raw, at + 1)


_WORDS = {b"n": (b"null",), b"t": (b"true",), b"f": (b"false",), b"N": (b"NaN",), b"I": (b"Infinity", b"Inf")}


def _scan_scalar(raw: bytes, at: int, char: bytes) -> int:
    if char == b'"':
        return _scan_string(raw, at)
    if char in _WORDS:
        return _scan_word(raw, at, _WORDS[char])
    if char == b"-" and raw[at + 1 : at + 2] == b"I":
        return _scan_word(raw, at + 1, _WORDS[b"I"])
    number = _NUMBER.match(raw, at)
    if number is None:
        raise _Fault(f"Invalid value. at {at + (char == b'-')}")
    if number[1] == b".":
        raise _Fault(f"Miss fraction part in number. at {number.end(1)}")
    if number[2] and not number[2][-1:].isdigit():
        raise _Fault(f"Miss exponent in number. at {number.end(2)}")
    if float(number[0]) in (float("inf"), float("-inf")):
        raise _Fault(f"Number too big to be stored in double. at {at}")
    return number.end()


def _scan_word(raw: bytes, at: int, words: tuple[bytes, ...]) -> int:
    for word in words:
        if raw.startswith(word, at):
            return at + len(word)
    shared = 0
    while raw[at + shared : at + shared + 1] == words[0][shared : shared + 1]:
        shared += 1
    raise _Fault(f"Invalid value. at {at + shared}")


def _scan_string(raw: bytes, at: int) -> int:
    at += 1
    while True:
        found = _PLAIN.match(raw, at)
        at = found.end() if found else at
        char = raw[at : at + 1]
        if char == b'"':
            return at + 1
        if char in (b"", b"\0"):
            raise _Fault(f"Missing a closing quotation mark in string. at {at}")
        escape = raw[at + 1 : at + 2] if char == b"\\" else b""
        if escape == b"u":
            at += _scan_code_units(raw, at)
        elif escape and escape in b'"\\/bfnrt':
            at += 2
        else:
            raise _Fault(f"Invalid escape character in string. at {at}")


def _scan_code_units(raw: bytes, at: int) -> int:
    """Return the length of `\\uXXXX`, or of a surrogate pair of them."""
    paired = _HIGH_SURROGATE.match(raw, at + 2) is not None and raw[at + 6 : at + 8] == b"\\u"
    if _HEX.match(raw, at + 2) is None or (paired and _HEX.match(raw, at + 8) is None):
        raise _Fault(f"Incorrect hex digit after \\u escape in string. at {at}")
    if paired and _LOW_SURROGATE.match(raw, at + 8):
        return 12
    if _HIGH_SURROGATE.match(raw, at + 2) or _LOW_SURROGATE.match(raw, at + 2):
        raise _Fault(f"The surrogate pair in string is invalid. at {at}")
    return 6


# Typed access with Triton's texts. `prefix` ends in ": " and is put before the text.


def find(value: Any, name: str) -> Any:
    """Return member `name` of an object, None if there is none or `value` is not an object; JSON's null is `NULL`."""
    if type(value) is not dict:
        return None
    member = value.get(name)
    return NULL if member is None and name in value else member


class _Null:
    """Type of `NULL`, which stands for JSON's null because None means absent."""


NULL = _Null()


def member(value: Any, name: str, prefix: str) -> Any:
    """Return member `name` of an object.

    Raises:
        Internal: there is none.
    """
    if type(value) is not dict or name not in value:
        raise Unparsable(f"{prefix}attempt to access non-existing object member '{name}'")
    return value[name]


def as_string(value: Any, prefix: str = "") -> str:
    """Return a string.

    Raises:
        Internal: `value` has another type.
    """
    if type(value) is not str:
        raise Unparsable(prefix + "attempt to access JSON non-string as string")
    return value


def as_bool(value: Any, prefix: str = "") -> bool:
    """Return a boolean.

    Raises:
        Internal: `value` has another type.
    """
    if type(value) is not bool:
        raise Unparsable(prefix + "attempt to access JSON non-boolean as boolean")
    return value


def as_unsigned(value: Any, prefix: str = "") -> int:
    """Return an integer.

    Raises:
        Internal: `value` is not a 64-bit unsigned integer.
    """
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise Unparsable(prefix + "attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_array(value: Any, prefix: str = "") -> list[Any]:
    """Return a list.

    Raises:
        Internal: `value` has another type.
    """
    if type(value) is not list:
        raise Unparsable(prefix + "attempt to access JSON non-array as array")
    return value
