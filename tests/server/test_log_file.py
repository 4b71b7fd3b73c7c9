"""The file of `--log-file`, on a disk that may be full."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.log_file import LogFile

FULL = "/dev/full"


@contextlib.contextmanager
def logging_to(path: str) -> Iterator[tuple[LogFile, logging.Logger]]:
    handler = LogFile(path)
    logger = logging.Logger("edge_serve.test")
    logger.addHandler(handler)
    try:
        yield handler, logger
    finally:
        handler.close()


@contextlib.contextmanager
def full_disk(handler: LogFile) -> Iterator[None]:
    """The file takes nothing meanwhile."""
    fd = handler._file.fileno()
    kept, full = os.dup(fd), os.open(FULL, os.O_WRONLY)
    os.dup2(full, fd)
    try:
        yield
    finally:
        os.dup2(kept, fd)
        os.close(kept)
        os.close(full)


def test_a_full_disk_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(FULL) as (_, logger):
        for number in range(3):
            logger.info("line %d", number)

    assert capfd.readouterr().err == (
        "edge-serve: cannot write the log to '/dev/full' (No space left on device): lines are lost until that is "
        "mended, then the log says how many\n"
    )


def test_when_there_is_room_again_the_log_says_how_many_are_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with logging_to(str(tmp_path / "log")) as (handler, logger):
        logger.info("before")
        for lost in (2, 1):
            with full_disk(handler):
                for _ in range(lost):
                    logger.info("lost")
            logger.info("after")
        logger.info("and on")

    gap = "lines that are lost here, because the file took none: "
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["before", f"{gap}2", "after", f"{gap}1", "after", "and on"]
    assert capfd.readouterr().err.count("cannot write the log") == 2


def test_a_line_that_was_cut_short_does_not_run_into_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def last_bytes(fd: int, data: bytes) -> int:
        if not data.startswith(b"cut"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:3])

    with logging_to(str(tmp_path / "log")) as (_, logger):
        monkeypatch.setattr(os, "write", last_bytes)
        logger.info("cut off")
        monkeypatch.undo()
        logger.info("whole")

    first, gap, last = (tmp_path / "log").read_text().splitlines()
    assert (first, last) == ("cut", "whole")
    assert re.search("lost here.*: 1$", gap)


def test_a_standard_error_that_takes_nothing_either_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(FULL, "w") as error, logging_to(FULL) as (_, logger):
        monkeypatch.setattr("sys.stderr", error)
        logger.info("lost")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            error.close()


def test_a_line_that_no_log_can_show_does_not_fail_its_caller(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with logging_to(str(tmp_path / "log")) as (handler, logger):
        logger.info("%d", "no number")
        logger.info("next")
    handler.emit(logging.makeLogRecord({"msg": "after the end"}))

    assert (tmp_path / "log").read_text() == "next\n"
    assert "Logging error" in capfd.readouterr().err
