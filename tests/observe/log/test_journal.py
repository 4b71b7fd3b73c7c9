"""The journal as the log: when it is used, what it gets, what is kept from it."""

from __future__ import annotations

import logging
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edge_serve import cli
from edge_serve.aio.sink import Sink
from edge_serve.config.settings.server import parse_argv
from edge_serve.messages.log_fields import DISPLAY, model_fields
from edge_serve.messages.settings import LogSettings
from edge_serve.observe.log import log, native
from edge_serve.observe.log.journal import (
    JournalHandler,
    LibrarySender,
    fields_of,
    find_journal,
    is_journal,
    priority,
)
from edge_serve.observe.log.limit import LikeLines, Limiter
from tests.observe.log.journald import Journald, journald


def all_are_sent() -> None:
    for handler in logging.getLogger("edge_serve").handlers:
        assert not isinstance(handler, JournalHandler) or handler.written(30)


class Sent:
    """Remembers entries in place of journald."""

    def __init__(self, works: bool = True) -> None:
        self._entries: list[dict[str, str]] = []
        self.works = works

    def send(self, fields: Mapping[str, str]) -> bool:
        self._entries.append(dict(fields))
        return self.works

    @property
    def entries(self) -> list[dict[str, str]]:
        all_are_sent()
        return self._entries

    def close(self) -> None:
        return

    @property
    def messages(self) -> list[str]:
        return [entry["MESSAGE"] for entry in self.entries]


class Time:
    """A clock that stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    root = logging.getLogger("edge_serve")
    before = root.handlers[:], root.propagate, root.level
    yield logging.getLogger("edge_serve.test")
    for handler in root.handlers:
        if isinstance(handler, JournalHandler):
            handler.close()
    root.handlers[:], root.propagate, root.level = before


def attach(sent: Sent, clock: Time) -> log.LogControl:
    journal = JournalHandler(sent)
    like = LikeLines(journal, Limiter(burst=2, per_second=0.1, summary_seconds=5.0), clock, journal=True)
    control = log.LogControl(LogSettings(), journal, like.tick)
    journal.addFilter(like)
    return control


def test_a_table_for_the_reader_of_lines_is_no_entry(logger: logging.Logger) -> None:
    sent = Sent()
    attach(sent, Time())
    logger.info("MODEL VERSION STATE", extra={DISPLAY: True})

    assert sent.entries == []


def test_like_lines_are_suppressed_and_counted_and_others_pass(logger: logging.Logger) -> None:
    sent, clock = Sent(), Time()
    control = attach(sent, clock)
    for i in range(10):
        logger.error("broken %d", i, extra=model_fields("a"))
        if i == 9:
            logger.error("another kind", extra=model_fields("a"))
    logger.error("broken 10", extra=model_fields("b"))
    control.tick()
    assert sent.messages == ["broken 0", "broken 1", "another kind", "broken 10"]

    clock.now += 5
    control.tick()
    assert sent.messages[4:] == ["8 more like this suppressed: broken 9"]
    assert sent.entries[4]["MODEL"] == "a"
    assert sent.entries[4]["PRIORITY"] == "3"


def test_model_messages_are_limited_by_their_final_text(logger: logging.Logger) -> None:
    sent, model = Sent(), logging.getLogger("edge_serve.model")
    attach(sent, Time())
    for i in range(5):
        model.error("%s: %s", "det", f"frame {i} is dark")
    model.error("%s: %s", "det", "the camera is gone")

    assert sent.messages == ["det: frame 0 is dark", "det: frame 1 is dark", "det: the camera is gone"]


def test_the_switches_of_the_log_apply(logger: logging.Logger) -> None:
    sent = Sent()
    control = attach(sent, Time())
    control.update(replace(control.settings(), info=False))
    logger.info("no")
    logger.error("yes")

    assert sent.messages == ["yes"]


def test_without_a_journal_lines_go_to_standard_error(
    logger: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    attach(Sent(works=False), Time())
    logger.error("broken")
    all_are_sent()

    assert capfd.readouterr().err == "<3>broken\n"


def test_suppressed_lines_are_counted_at_the_end(logger: logging.Logger) -> None:
    sent = Sent()
    journal = JournalHandler(sent)
    like = LikeLines(journal, Limiter(burst=1), Time(), journal=True)
    journal.addFilter(like)
    said = {"msg": "again", "levelno": logging.INFO}
    for _ in range(2):
        journal.handle(logging.makeLogRecord(said))
    try:
        raise ValueError("deep")
    except ValueError as error:
        failed = {**said, "exc_info": (type(error), error, error.__traceback__)}
        journal.handle(logging.makeLogRecord(failed))
    like.tick(all=True)
    journal.close()

    assert sent.messages == ["again", "2 more like this suppressed: again: ValueError: deep"]
    assert sent.entries[1]["EXCEPTION_TEXT"].endswith("ValueError: deep\n")


def test_standard_error_is_the_journal_when_device_and_inode_say_so() -> None:
    found = os.fstat(0)

    assert is_journal(0, f"{found.st_dev}:{found.st_ino}")
    assert not is_journal(0, f"{found.st_dev}:{found.st_ino + 1}")
    for nonsense in ("", "1", "a:b", "1:2:3"):
        assert not is_journal(0, nonsense)
    assert not is_journal(-1, "1:2")


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journald]:
    """A journald, and a standard error that leads to it."""
    found = os.fstat(2)
    with journald(tmp_path) as made:
        monkeypatch.setattr(native, "SOCKET", made.path)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        monkeypatch.setitem(sys.modules, "systemd.journal", None)  # as where the library is not installed
        yield made


def test_the_server_logs_to_the_journal_when_its_standard_error_is_that(logger: logging.Logger, peer: Journald) -> None:
    cli.configure_log(parse_argv(["--model-repository=x"], {}))
    logger.info("model ready", extra=model_fields("m", 1))
    all_are_sent()

    (entry,) = peer.entries()
    assert entry["MODEL"] == "m"


@pytest.mark.parametrize("setting", ["--log-format=json", "--log-file={}"])
def test_a_client_that_asks_for_text_gets_text(
    setting: str, logger: logging.Logger, peer: Journald, tmp_path: Path
) -> None:
    cli.configure_log(parse_argv(["--model-repository=x", setting.format(tmp_path / "log")], {}))
    logger.info("model ready")
    for handler in logging.getLogger("edge_serve").handlers:
        handler.close()

    assert peer.entries() == []


def test_another_standard_error_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_journal({}) is None
    assert find_journal({"JOURNAL_STREAM": "1:1"}) is None


def test_a_library_that_is_installed_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[bytes, ...]] = []
    module = types.ModuleType("systemd.journal")
    module.sendv = lambda *fields: sent.append(fields)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "systemd", types.ModuleType("systemd"))
    monkeypatch.setitem(sys.modules, "systemd.journal", module)
    found = os.fstat(2)
    journal = find_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
    assert journal is not None
    journal.handle(logging.LogRecord("edge_serve", logging.INFO, "f.py", 1, "two\nlines", (), None))
    journal.close()

    assert b"MESSAGE=two\\nlines" in sent[0]
    assert b"PRIORITY=6" in sent[0]


def test_a_library_that_fails_is_reported() -> None:
    class Broken:
        def sendv(self, *fields: bytes) -> None:
            raise OSError("no journal")

    assert not LibrarySender(Broken()).send({"MESSAGE": "x"})


def test_no_journald_where_it_should_be_leaves_the_text(peer: Journald, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "SOCKET", "/nowhere/socket")

    assert find_journal(dict(os.environ)) is None


def test_a_journal_that_takes_nothing_holds_no_caller_and_loses_nothing_that_was_kept(
    logger: logging.Logger, peer: Journald, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_serve.observe.log.journal.Sink", partial(Sink, most=10_000))
    journal = find_journal(os.environ)
    assert journal is not None
    log.LogControl(LogSettings(), journal)  # without a limit of like lines
    for number in range(1000):  # more than the socket and the sink take
        logger.info("%d", number)
    assert not journal.written(0.01)
    came: list[str] = []
    while not journal.written(0.01):
        came += [entry["MESSAGE"] for entry in peer.entries()]
    came += [entry["MESSAGE"] for entry in peer.entries()]

    kept = len(came) - 1
    assert came[:kept] == [str(number) for number in range(kept)]
    assert came[kept] == f"{1000 - kept} lines are lost: the journal did not take them"


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


def test_a_message_is_one_line_and_a_traceback_is_a_separate_field() -> None:
    failed = record(logging.ERROR, "two\nlines %s", "\x1b[31m")
    try:
        raise ValueError("deep\ndown")
    except ValueError as error:
        failed.exc_info = (type(error), error, error.__traceback__)
    fields = fields_of(failed)

    assert fields["MESSAGE"] == r"two\nlines \x1b[31m: ValueError: deep\ndown"
    assert fields["EXCEPTION_TEXT"].startswith("Traceback (most recent call last):\n")
    assert fields["EXCEPTION_TEXT"].endswith("ValueError: deep\ndown\n")
