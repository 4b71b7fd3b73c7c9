"""config.pbtxt -> ModelConfig: protobuf's text format, with errors that a person can act on."""

from __future__ import annotations

import codecs
import difflib
import re
import warnings
from functools import partial

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument, with_advice

#: errors of the text format's reader: its own, and those for odd escapes, huge numbers, and hostile nesting
_READER_ERRORS = (text_format.ParseError, UnicodeError, ValueError, OverflowError, RecursionError)

#: backslashes in a row; protobuf's unescaping needs time by the square of their number, and stops all threads meanwhile
MOST_BACKSLASHES = 256

#: characters of a complaint; it may quote all that a client sent, and goes into the log
LONGEST = 600

#: types by the names that they have elsewhere
_TYPES = {
    "FLOAT": "FP32", "FLOAT32": "FP32", "DOUBLE": "FP64", "FLOAT64": "FP64", "HALF": "FP16", "FLOAT16": "FP16",
    "BFLOAT16": "BF16", "BYTES": "STRING", "STR": "STRING", "OBJECT": "STRING", "INT": "INT32", "LONG": "INT64",
    "BYTE": "UINT8", "BOOLEAN": "BOOL",
}  # fmt: skip
#: start of a complaint, what stands at its place, and how to write that
_SYNTAX = (
    ('Expected "{"', "]", "remove the comma before the ]"),
    ('Expected "{"', '"', 'a group is written in braces, as in value { string_value: "text" }'),
    ('Expected "{"', "", "a group is written in braces, as in dynamic_batching { }"),
    ('Expected ","', "", "put a comma between the elements of a list, and a ] behind the last one"),
    ('Expected ":"', "", "a value follows a colon, as in max_batch_size: 8"),
    ("Couldn't parse integer", "", "write a whole number without quotes, as in max_batch_size: 8 or dims: [ -1, 4 ]"),
    ("Expected identifier or number", "<<<", "git left a conflict here: choose one side, remove the marks"),
    ("Expected identifier or number", "/", "a comment begins with #"),
    ("Expected identifier or number", "}", "there is one } too many here or above"),
    ('Expected "}"', "", "a } is missing: each { needs one"),
)

_POSITION = re.compile(r"^(\d+)(?::(\d+))? : ")
_QUOTED_LINE = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value (?:named|with number) (\S+?)\.?$')
_REPEATED = re.compile(r'Message type "([\w.]+)" should not have multiple "([^"]*)" fields')

#: of the text format, as far as values and their places depend on them; a string that does not end is one token, so
#: that the time is linear in the length of any text
_TOKEN = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? | [{}<>\[\]:] | -\s+(?=[\d.]) | [\w.+-]+""", re.VERBOSE
)
#: in a string: an escape, or the byte that ends a string in C++
_ESCAPE = re.compile(r"\\(.)|\0")
_ESCAPES = frozenset("abfnrtv\\?'\"xuU01234567")
#: numbers of Python which the text format does not have
_PYTHONS_NUMBER = re.compile(r"\+|-?0[bBoO]|-?[\d.].*_")
#: numbers that the text format takes for a boolean as well
_BOOLEAN = re.compile(r"0+[01]|0[xX]0*[01]")
#: a byte that is not UTF-8, as `surrogateescape` decodes it
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")


def parse_model_config(text: bytes | str, source: str = "config.pbtxt") -> pb.ModelConfig:
    """Parse a configuration. Nothing is filled in or checked.

    Args:
        source: the file's name, for messages.

    Raises:
        InvalidArgument: not protobuf text format, or fields and values that ModelConfig does not have.
    """
    if isinstance(text, bytes):
        text = _decode(text, source)
    run = "\\" * (MOST_BACKSLASHES + 1)
    if run in text:
        line = text.count("\n", 0, text.index(run)) + 1
        raise InvalidArgument(
            f"{source}:{line}: found more than {MOST_BACKSLASHES} backslashes in a row, expected fewer"
        )
    text = _TOKEN.sub(partial(_rewrite, source), text)
    if wrong := _NOT_UTF_8.search(text):
        line = text.count("\n", 0, wrong.start()) + 1
        raise InvalidArgument(f"{source}:{line}: found byte 0x{ord(wrong[0]) - 0xDC00:02x}, expected UTF-8 text")
    try:
        with warnings.catch_warnings():
            # protobuf's unescaping warns of odd octal escapes, and then refuses them anyway
            warnings.simplefilter("ignore", DeprecationWarning)
            return text_format.Parse(text, pb.ModelConfig())
    except _READER_ERRORS as error:
        raise InvalidArgument(_explain(str(error), text, source)) from error


def find_line(text: str, *path: str, value: str | None = None) -> int:
    """Return the line of the one field at `path`, with this value if there are several; 0 = there is none, or more.

    Args:
        text: the configuration, which `parse_model_config` accepts.
        path: names of fields, such as `input`, `name`.
        value: of a string, without escapes.
    """
    found, blocks = [], list[str]()
    word, follows_colon = "", False
    for token in _TOKEN.finditer(text):
        match token[0]:
            case ":":
                follows_colon = True
                continue
            case "{" | "<" | "[":
                blocks.append(word)  # of an element of a list: ""
                word = ""
            case "}" | ">" | "]":
                del blocks[-1:]
                word = ""
            case shown if shown.startswith("#"):
                continue
            case shown if follows_colon and word:
                if (*filter(None, blocks), word) == path and value in (None, shown[1:-1]):
                    found.append(text.count("\n", 0, token.start()) + 1)
                word = ""
            case shown:
                word = shown
        follows_colon = False
    return found[0] if len(found) == 1 else 0


def _decode(raw: bytes, source: str) -> str:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = source.rpartition("/")[2]
        fix = f"iconv -f UTF-16 -t UTF-8 {name} > new && mv new {name}"
        raise InvalidArgument(f"{source}: found UTF-16 text (as Windows writes it), expected UTF-8: {fix}")
    return raw.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")


def _rewrite(source: str, token: re.Match[str]) -> str:
    """Return a token in the form that protobuf's Python reader takes as its C++ reader, which Triton uses, takes it.

    Raises:
        InvalidArgument: the C++ reader refuses it, and the Python reader would give it a meaning.
    """
    shown = token[0]
    match shown[0]:
        case "#":
            return _NOT_UTF_8.sub("\ufffd", shown)
        case '"' | "'":
            return _ESCAPE.sub(partial(_rewrite_escape, source, token), shown)
        case "-" if shown[-1].isspace():  # before a number
            return f"{shown[1:]}-"
    if _PYTHONS_NUMBER.match(shown):
        raise _refuse(token.string, token.start(), source, f"found {shown}, expected a number like 8, -1, 0x10 or 0.5")
    return shown[-1].rjust(len(shown)) if _BOOLEAN.fullmatch(shown) else shown


def _rewrite_escape(source: str, token: re.Match[str], escape: re.Match[str]) -> str:
    if escape[0] == "\0":
        complaint = "found the byte 0 in a string, expected text"
    elif escape[1] in _ESCAPES:
        return "?" if escape[1] == "?" else escape[0]
    else:
        complaint = (
            f"found {escape[0]} in a string, which is no escape: write \\{escape[0]} for a backslash before {escape[1]}"
        )
    raise _refuse(token.string, token.start() + escape.start(), source, complaint)


def _refuse(text: str, place: int, source: str, complaint: str) -> InvalidArgument:
    """Return the error for a complaint about the character at an index of `text`."""
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    return InvalidArgument(f"{source}:{line}:{column}: {complaint}")


def _explain(message: str, text: str, source: str) -> str:
    """Return protobuf's complaint as `file:line:column: what was found, what was expected`."""
    position = _POSITION.match(message)
    if position is None:
        return f"{source}: {message}"
    line, column = int(position[1]), position[2] or "1"
    complaint = _QUOTED_LINE.sub("", message[position.end() :].strip())
    found = "".join(text.splitlines()[line - 1 : line]) if line else ""
    told = with_advice(reword(complaint), _advice_on_syntax(complaint, found[int(column) - 1 :]))
    shown = found.strip()
    return f"{source}:{line}:{column}: {told}; the line reads: {shown if len(shown) <= 80 else shown[:77] + '...'!r}"


def reword(complaint: str) -> str:
    """Rewrite protobuf's complaint for a person who edits the file (also used for JSON), cut to LONGEST."""
    said = _reword(complaint)
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]}...{said[-LONGEST // 2 :]}"


def _reword(complaint: str) -> str:
    if match := _UNKNOWN_FIELD.search(complaint):
        message, field = match.groups()
        if message.endswith("Entry"):
            return f"found '{field}' in a map, expected key and value, as in {{ key: \"{field}\" value ... }}"
        fields = _message(message).fields
        if owners := [f.name for f in fields if f.message_type and field in f.message_type.fields_by_name]:
            return f"field '{field}' is not one of {_short(message)}: write it inside of {' or '.join(owners)} {{ }}"
        hint = _did_you_mean(field, [f.name for f in fields])
        return (
            f"unknown field '{field}' in {_short(message)}{hint}; if the name is right, the configuration is newer "
            "than this server: remove the field"
        )
    if match := _UNKNOWN_VALUE.search(complaint):
        enum, value = match.groups()
        names = [v.name for v in pb.DESCRIPTOR.pool.FindEnumTypeByName(enum).values]
        plain = value.strip("\"'")
        if plain != value and plain in names:
            return f"found {value}, expected {plain} without quotes"
        return f"unknown value '{value}'{_did_you_mean(value, names)}; expected one of {', '.join(names)}"
    if match := _REPEATED.search(complaint):
        return f"field '{match[2]}' of {_short(match[1])} may be given only once"
    return complaint.rstrip(".")


def _advice_on_syntax(complaint: str, rest: str) -> str:
    """Return how to write the text that the reader has met in place of something else.

    Args:
        rest: of the line, from where the reader complains.
    """
    if re.search("[\u2018-\u201f\u00ab\u00bb]", complaint):
        return 'write straight quotes (") in place of curly ones'
    if match := re.match(r"Expected string but found: '(\w+)'", complaint):
        return f'write it in quotes: "{match[1]}"'
    for start, found, advice in _SYNTAX:
        if complaint.startswith(start) and rest.startswith(found):
            return advice
    if re.match(r"Expected identifier or number, got [{\[]", complaint):
        return "this is protobuf text, not JSON: write neither braces around the whole nor quotes around names"
    return ""


def _did_you_mean(word: str, known: list[str]) -> str:
    plain = word.strip("\"'").upper().removeprefix("TYPE_").removeprefix("KIND_")
    plain = _TYPES.get(plain, plain)
    for name in known:
        if name in (f"TYPE_{plain}", f"KIND_{plain}"):
            return f", did you mean '{name}'?"
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean '{close[0]}'?" if close else ""


def _message(full_name: str) -> Descriptor:
    return pb.DESCRIPTOR.pool.FindMessageTypeByName(full_name)


def _short(full_name: str) -> str:
    return full_name.removeprefix("inference.")
