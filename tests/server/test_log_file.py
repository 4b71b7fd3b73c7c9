"""The file of `--log-file` and standard error: a disk that may be full, a pipe that takes nothing."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.observe.log.file import LineHandler, open_log
from tests.server.running import Running

FULL = "/dev/full"
PATIENCE = 30.0


@contextlib.contextmanager
def logging_to(path: str) -> Iterator[tuple[LineHandler, logging.Logger]]:
    handler = open_log(path)
    logger = logging.Logger("edge_serve.test")
    logger.addHandler(handler)
    try:
        yield handler, logger
    finally:
        handler.close()


@contextlib.contextmanager
def full_disk(handler: LineHandler) -> Iterator[None]:
    """The file takes nothing meanwhile."""
    assert handler.written(PATIENCE)
    fd = handler.descriptor
    kept, full = os.dup(fd), os.open(FULL, os.O_WRONLY)
    os.dup2(full, fd)
    try:
        yield
        assert handler.written(PATIENCE)
    finally:
        os.dup2(kept, fd)
        os.close(kept)
        os.close(full)


def test_a_full_disk_is_logged_once(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(FULL) as (_, logger):
        for number in range(3):
            logger.info("line %d", number)

    assert capfd.readouterr().err == (
        "edge-serve: cannot write the log to '/dev/full' (No space left on device): lines are lost until that is "
        "mended, then the log says how many\n"
    )


def test_a_file_that_was_rotated_is_opened_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    with logging_to(str(path)) as (handler, logger):
        for text in ("before", "renamed", "removed"):
            logger.info(text)
            assert handler.written(PATIENCE)
            if text == "before":
                path.rename(rotated)
            elif text == "renamed":
                path.unlink()
    assert (rotated.read_text(), path.read_text()) == ("before\n", "removed\n")
    assert capfd.readouterr().err == ""


def test_a_rotated_file_is_written_on_while_no_new_one_can_be_opened(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    with logging_to(str(path)) as (handler, logger):
        path.rename(rotated)
        path.mkdir()
        for _ in range(3):
            logger.info("kept")
        assert handler.written(PATIENCE)
        assert rotated.read_text() == "kept\n" * 3
        assert capfd.readouterr().err == (
            f"edge-serve: cannot open '{path}' anew (Is a directory): until that is mended, the log goes to the file "
            "that had this name\n"
        )
        rotated.unlink()
        logger.info("lost")
        assert handler.written(PATIENCE)
        path.rmdir()
        logger.info("after")
    assert capfd.readouterr().err.startswith(f"edge-serve: cannot write the log to '{path}' (Is a directory): lines")
    lines = path.read_text().splitlines()
    assert (len(lines), lines[-1]) == (2, "after")
    assert lines[0].endswith("because the file took none: 1")


def test_a_second_rotation_that_fails_is_reported_like_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    with logging_to(str(path)) as (handler, logger):
        for _ in range(2):
            path.rename(rotated)
            path.mkdir()
            logger.info("behind")
            assert handler.written(PATIENCE)
            path.rmdir()
            rotated.rename(path)
            logger.info("at its place")
            assert handler.written(PATIENCE)
    assert capfd.readouterr().err.count("anew (Is a directory)") == 2


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

    with logging_to(str(tmp_path / "log")) as (handler, logger):
        monkeypatch.setattr(os, "write", last_bytes)
        logger.info("cut off")
        assert handler.written(PATIENCE)
        monkeypatch.undo()
        logger.info("whole")

    first, gap, last = (tmp_path / "log").read_text().splitlines()
    assert (first, last) == ("cut", "whole")
    assert re.search("lost here.*: 1$", gap)


def test_a_blocked_standard_error_fails_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(FULL, "w") as error, logging_to(FULL) as (handler, logger):
        monkeypatch.setattr("sys.stderr", error)
        logger.info("lost")
        assert handler.written(PATIENCE)
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


def fill(descriptor: int) -> int:
    """Write to a pipe until it takes nothing; how many bytes that were."""
    os.set_blocking(descriptor, False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            written += os.write(descriptor, b"x" * 4096)
    os.set_blocking(descriptor, True)
    return written


@pytest.mark.parametrize("blocking", [True, False], ids=["waits in write", "O_NONBLOCK"])
def test_a_full_pipe_holds_no_caller_and_gets_every_line_in_order(blocking: bool) -> None:
    reader, writer = os.pipe()
    before = fill(writer)
    os.set_blocking(writer, blocking)
    handler = LineHandler(writer)
    logger = logging.Logger("edge_serve.test")
    logger.addHandler(handler)
    for number in range(100):
        logger.info("line %d", number)  # would wait for ever
    assert not handler.written(0.01)
    with open(reader, "rb") as file:
        assert len(file.read(before)) == before
        assert handler.written(PATIENCE)
        handler.close()
        os.close(writer)
        assert file.read().decode().split() == " ".join(f"line {number}" for number in range(100)).split()


class Held:
    """A pipe that is full, as of a program that reads no more."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            self.reader, self.writer = os.pipe()
        else:
            os.mkfifo(path)
            self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self.writer = os.open(path, os.O_WRONLY)
        self.before = fill(self.writer)

    def read(self, pattern: str) -> str:
        """Return the lines written since, as soon as they match `pattern`."""
        os.set_blocking(self.reader, True)
        text = b""
        while not re.search(pattern, text[self.before :].decode(errors="replace")):
            text += os.read(self.reader, 1 << 16)
        return text[self.before :].decode()


@pytest.mark.parametrize(
    "to_file",
    [pytest.param(False, marks=pytest.mark.slow, id="standard error"), pytest.param(True, id="--log-file is a FIFO")],
)
def test_a_server_whose_log_is_blocked_serves_and_stops(tmp_path: Path, to_file: bool) -> None:
    held = Held(tmp_path / "log" if to_file else None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--log-file={tmp_path / 'log'}"] if to_file else []
    flags += [f"--model-repository={tmp_path}", "--model-control-mode=explicit", "--allow-metrics=false"]
    command = [sys.executable, "-m", "edge_serve", f"--http-port={port}", "--allow-grpc=false", *flags]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent if to_file else held.writer)
    try:
        server = Running(process, tmp_path / "none", http=port)
        until_ready(server)
        for _ in range(20):
            assert server.post("/v2/repository/models/none/load", {})[0] == 500  # each logs an error
        if not to_file:
            log = held.read(r"(?s)(failed to load 'none'.*){20}\n")
            assert "HTTP on 127.0.0.1" in log.splitlines()[0]
            fill(held.writer)
            server.post("/v2/repository/models/none/load", {})
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()
        os.close(held.reader)
        os.close(held.writer)


def until_ready(server: Running) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if server.get("/v2/health/ready")[0] == 200:  # before, requests to load are refused
                return
        assert server.process.poll() is None
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.02)
