"""Reads the fields of a config.pbtxt (protobuf text format) that tell code from data.

Only fields with a value are returned, each with the names of the enclosing messages. Text that this parser cannot read
is refused: the server has another parser, and a difference between the two must not let code pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from ota.errors import Untrusted

MOST_BYTES = 1024 * 1024
MOST_DEPTH = 32

_TOKEN = re.compile(
    r"""(?P<blank>[\s,;]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}<>\[\]:])
    |(?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+-]*)""",
    re.VERBOSE,
)
#: escapes that this parser and that of the server read alike; the server also knows numbers and names of characters
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\"}
_CLOSES = {"{": "}", "<": ">"}


class Field(NamedTuple):
    """A field, such as `backend` or `parameters.key`, and its value. Strings are without quotes."""

    path: str
    value: str


def fields_of(data: bytes, what: str) -> list[Field]:
    """Return the fields of a config.pbtxt, in order.

    Raises:
        Untrusted: it is no text format that this can read.
    """
    try:
        text = data.decode("utf-8") if len(data) <= MOST_BYTES else ""
    except UnicodeDecodeError:
        raise Untrusted(f"{what} is not UTF-8") from None
    if not text and data:
        raise Untrusted(f"{what} has more than {MOST_BYTES} bytes")
    tokens = _Tokens(text, what)
    found = list(_message(tokens, "", "", 0))
    if tokens.kind:
        tokens.refuse()
    return found


class _Tokens:
    """The tokens of a text. `kind` and `value` are those of the current token; "" at the end."""

    def __init__(self, text: str, what: str) -> None:
        self._text, self._what, self._at = text, what, 0
        self.kind = self.value = ""
        self.next()

    def next(self) -> None:
        """Go to the next token that is not blank."""
        self.kind = "blank"
        while self.kind == "blank":
            if self._at == len(self._text):
                self.kind = self.value = ""
                return
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                self.refuse()
            self.kind, self.value, self._at = str(found.lastgroup), found[0], found.end()

    def refuse(self, why: str = "is not expected here") -> NoReturn:
        """Raise Untrusted with the line number."""
        line = self._text.count("\n", 0, self._at) + 1
        shown = self.value or self._text[self._at : self._at + 20]
        raise Untrusted(f"{self._what}, line {line}: {shown!r} {why}")


def _message(tokens: _Tokens, path: str, closing: str, depth: int) -> Iterator[Field]:
    """Yield the fields of a message up to its closing bracket, or to the end of the text."""
    if depth > MOST_DEPTH:
        tokens.refuse()
    while tokens.value != closing or tokens.kind not in ("mark", ""):
        if tokens.kind != "word" or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", tokens.value):
            tokens.refuse()
        inner = f"{path}.{tokens.value}" if path else tokens.value
        tokens.next()
        colon = tokens.value == ":" and tokens.kind == "mark"
        if colon:
            tokens.next()
        yield from _values(tokens, inner, depth, colon=colon)
    if closing:
        tokens.next()


def _values(tokens: _Tokens, path: str, depth: int, *, colon: bool) -> Iterator[Field]:
    """Yield one value, or those of a list."""
    if tokens.kind != "mark" or tokens.value != "[":
        yield from _value(tokens, path, depth, colon=colon)
        return
    tokens.next()
    while (tokens.kind, tokens.value) != ("mark", "]"):
        yield from _value(tokens, path, depth, colon=colon)
    tokens.next()


def _value(tokens: _Tokens, path: str, depth: int, *, colon: bool) -> Iterator[Field]:
    if tokens.kind == "mark" and tokens.value in _CLOSES:
        closing = _CLOSES[tokens.value]
        tokens.next()
        yield from _message(tokens, path, closing, depth + 1)
    elif tokens.kind == "word" and colon:
        yield Field(path, tokens.value)
        tokens.next()
    elif tokens.kind == "text" and colon:
        text = ""
        while tokens.kind == "text":  # adjacent strings are one
            text += _unquoted(tokens)
            tokens.next()
        yield Field(path, text)
    else:
        tokens.refuse()


def _unquoted(tokens: _Tokens) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[1] not in _ESCAPES:
            tokens.refuse(f"has the escape {found[0]}: write the character itself")
        return _ESCAPES[found[1]]

    return re.sub(r"\\(.)", replace, tokens.value[1:-1])
