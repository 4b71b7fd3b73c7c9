"""The log's lines."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_serve import cli
from edge_serve.config.settings.server import parse_argv
from edge_serve.messages.settings import LogSettings
from edge_serve.observe.log import log


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
    settings = LogSettings(format=format_name, **levels)  # type: ignore[arg-type]  # bools and one int
    log.LogControl(settings, logging.StreamHandler(stream))
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
    log.LogControl(LogSettings(info=False, verbose_level=1), logging.StreamHandler(stream))
    for level in (logging.DEBUG, logging.INFO, logging.ERROR):
        logger.log(level, "x")
    assert [line[0] for line in stream.getvalue().splitlines()] == ["V", "E"]


def control(**changes: bool | int | str) -> tuple[log.LogControl, io.StringIO]:
    stream = io.StringIO()
    settings = replace(LogSettings("f.log"), **changes)  # type: ignore[arg-type]  # its fields
    return log.LogControl(settings, logging.StreamHandler(stream)), stream


def test_settings_apply_from_the_next_line_on(logger: logging.Logger) -> None:
    here, stream = control()
    logger.debug("not yet")
    logger.info("info")
    here.update(LogSettings(info=False, verbose_level=1, format="json"))
    logger.debug("verbose")
    logger.info("no more")
    here.update(LogSettings(error=False))
    logger.debug("no more")
    logger.error("no more")
    logger.info("info again")

    lines = stream.getvalue().splitlines()
    assert [line.rpartition("] ")[2] for line in (lines[0], lines[2])] == ["info", "info again"]
    assert json.loads(lines[1])["message"] == "verbose"
    assert len(lines) == 3


def test_the_file_stays_what_it_is_and_the_rest_is_shown(logger: logging.Logger) -> None:
    here, _ = control()
    here.update(LogSettings("other.log", warning=False))

    assert here.settings() == LogSettings("f.log", warning=False)


def test_a_second_control_takes_the_place_of_the_first(logger: logging.Logger) -> None:
    _, first = control()
    _, second = control()
    logger.info("once")

    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


@pytest.mark.parametrize("format_name", ["default", "ISO8601"])
def test_a_traceback_is_one_line(logger: logging.Logger, format_name: str) -> None:
    _, stream = control(format=format_name)
    try:
        raise ValueError("deep\ndown")
    except ValueError:
        logger.exception("it failed")

    (line,) = stream.getvalue().splitlines()
    assert r"it failed\nTraceback" in line
    assert line.endswith(r"ValueError: deep\ndown")


def test_a_name_that_is_no_utf8_does_not_keep_a_line_out_of_the_file(logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "log"
    config = parse_argv(["--model-repository=x", f"--log-file={path}"], {})
    here = cli.configure_log(config)
    logger.info("model %s", os.fsdecode(b"m\xff"))
    logger.info("next")

    assert here.settings().file == str(path)
    for handler in logging.getLogger("edge_serve").handlers:
        handler.close()
    first, second = path.read_text().splitlines()
    assert first.endswith(r"model m\udcff")
    assert second.endswith("next")
