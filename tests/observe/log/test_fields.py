"""Log records as journal entries."""

from __future__ import annotations

import logging

import pytest

from edge_serve.messages.log_fields import model_fields
from edge_serve.observe.log.fields import fields_of, priority


def record(level: int = logging.INFO, text: str = "model %s", *values: object, **extra: str) -> logging.LogRecord:
    made = logging.LogRecord("edge_serve.x", level, "/src/x.py", 7, text, values or ("m",), None, "load")
    made.__dict__.update(extra)
    return made


def test_an_entry_says_where_it_comes_from_and_what_it_is_about() -> None:
    assert fields_of(record(logging.ERROR, **model_fields("m", 2, "r"))) == {
        "MESSAGE": "model m",
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "edge-serve",
        "CODE_FILE": "/src/x.py",
        "CODE_LINE": "7",
        "CODE_FUNC": "load",
        "MODEL": "m",
        "VERSION": "2",
        "REQUEST_ID": "r",
    }


@pytest.mark.parametrize(
    ("level", "number"),
    [(logging.DEBUG, "7"), (logging.INFO, "6"), (25, "6"), (logging.WARNING, "4"), (logging.ERROR, "3"), (50, "3")],
)
def test_priorities_are_syslogs(level: int, number: str) -> None:
    assert priority(level) == number


def test_a_message_is_one_line_and_a_traceback_a_field_of_its_own() -> None:
    failed = record(logging.ERROR, "two\nlines %s", "\x1b[31m")
    try:
        raise ValueError("deep\ndown")
    except ValueError as error:
        failed.exc_info = (type(error), error, error.__traceback__)
    fields = fields_of(failed)

    assert fields["MESSAGE"] == r"two\nlines \x1b[31m: ValueError: deep\ndown"
    assert fields["EXCEPTION_TEXT"].startswith("Traceback (most recent call last):\n")
    assert fields["EXCEPTION_TEXT"].endswith("ValueError: deep\ndown\n")
