"""The log's lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from edge_serve import log


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the server's tree; what was configured before is put back."""
    root = logging.getLogger("edge_serve")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    yield logging.getLogger("edge_serve.test")
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


def written(format_name: str, logger: logging.Logger, text: str, **levels: bool | int) -> str:
    stream = io.StringIO()
    log.configure(format_name, log.LevelFilter(**levels), stream)  # type: ignore[arg-type]  # bools and one int
    logger.warning("%s", text)
    return stream.getvalue()


def test_the_default_is_tritons_layout(logger: logging.Logger) -> None:
    line = written("default", logger, "model m ready")

    assert re.fullmatch(r"W\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ test_log\.py:\d+\] model m ready\n", line)


def test_iso8601(logger: logging.Logger) -> None:
    line = written("ISO8601", logger, "x")

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ W \d+ test_log\.py:\d+\] x\n", line)


def test_json_is_an_object_a_line(logger: logging.Logger) -> None:
    entry = json.loads(written("json", logger, 'say "hi"\n'))

    assert (entry["level"], entry["message"]) == ("warning", 'say "hi"\n')
    assert entry["source"].startswith("test_log.py:")


def test_nothing_that_a_client_sends_starts_a_line(logger: logging.Logger) -> None:
    line = written("default", logger, "model 'x\nE0101 forged\x1b[2J'")

    assert line.count("\n") == 1
    assert r"x\nE0101 forged\x1b[2J" in line


def test_each_level_has_its_switch(logger: logging.Logger) -> None:
    assert written("default", logger, "x", warning=False) == ""

    stream = io.StringIO()
    log.configure("default", log.LevelFilter(info=False, verbose=1), stream)
    for level in (logging.DEBUG, logging.INFO, logging.ERROR):
        logger.log(level, "x")
    assert [line[0] for line in stream.getvalue().splitlines()] == ["V", "E"]
