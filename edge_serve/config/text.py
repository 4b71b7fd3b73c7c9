"""config.pbtxt -> ModelConfig: protobuf's text format, with errors that a person can act on."""

from __future__ import annotations

import codecs
import difflib
import re
import warnings

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor

from edge_serve.config import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument, with_advice

#: what the text format's reader raises besides its own error on odd escapes, huge numbers and hostile nesting
_READER_ERRORS = (text_format.ParseError, UnicodeError, ValueError, OverflowError, RecursionError)

#: backslashes in a row; protobuf's unescaping needs time by the square of their number, and stops all threads meanwhile
MOST_BACKSLASHES = 256

#: characters of a complaint; it may quote all that a client sent, and goes into the log
LONGEST = 600

_POSITION = re.compile(r"^(\d+)(?::(\d+))? : ")
_QUOTED_LINE = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value (?:named|with number) (\S+?)\.?$')
_REPEATED = re.compile(r'Message type "([\w.]+)" should not have multiple "([^"]*)" fields')


def parse_model_config(text: bytes | str, source: str = "config.pbtxt") -> pb.ModelConfig:
    """The configuration that `text` says; nothing is filled in or checked.

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
    try:
        with warnings.catch_warnings():
            # protobuf's unescaping warns of odd octal escapes, and then refuses them anyway
            warnings.simplefilter("ignore", DeprecationWarning)
            return text_format.Parse(text, pb.ModelConfig())
    except _READER_ERRORS as error:
        raise InvalidArgument(_explain(str(error), text, source)) from error


def _decode(raw: bytes, source: str) -> str:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = source.rpartition("/")[2]
        fix = f"iconv -f UTF-16 -t UTF-8 {name} > new && mv new {name}"
        raise InvalidArgument(f"{source}: found UTF-16 text (as Windows writes it), expected UTF-8: {fix}")
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"found byte 0x{raw[error.start]:02x}, expected UTF-8 text"
        raise InvalidArgument(f"{source}:{line}: {found}") from error


def _explain(message: str, text: str, source: str) -> str:
    """The reader's complaint as `file:line:column: what was found, what was expected`."""
    position = _POSITION.match(message)
    if position is None:
        return f"{source}: {message}"
    line, column = int(position[1]), position[2] or "1"
    complaint = _QUOTED_LINE.sub("", message[position.end() :].strip())
    return f"{source}:{line}:{column}: {reword(complaint)}; the line reads: {_line(text, line)}"


def reword(complaint: str) -> str:
    """Protobuf's complaint in the words of a person who edits the file (also used for JSON), cut to LONGEST."""
    said = _reword(complaint)
    return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]}...{said[-LONGEST // 2 :]}"


def _reword(complaint: str) -> str:
    if match := _UNKNOWN_FIELD.search(complaint):
        message, field = match.groups()
        hint = _did_you_mean(field, [f.name for f in _message(message).fields])
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
    return with_advice(complaint.rstrip("."), _advice_on_syntax(complaint))


def _advice_on_syntax(complaint: str) -> str:
    """Return how to write the text that the reader has met in place of something else."""
    if re.search("[\u2018-\u201f\u00ab\u00bb]", complaint):
        return 'write straight quotes (") in place of curly ones'
    if match := re.match(r"Expected string but found: '(\w+)'", complaint):
        return f'write it in quotes: "{match[1]}"'
    if re.match(r"Expected identifier or number, got [{\[]", complaint):
        return "this is protobuf text, not JSON: write neither braces around the whole nor quotes around names"
    return ""


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean '{close[0]}'?" if close else ""


def _message(full_name: str) -> Descriptor:
    return pb.DESCRIPTOR.pool.FindMessageTypeByName(full_name)


def _short(full_name: str) -> str:
    return full_name.removeprefix("inference.")


def _line(text: str, number: int) -> str:
    """Line `number` of `text`, at most 80 characters of it."""
    lines = text.splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return repr(line if len(line) <= 80 else line[:77] + "...")
