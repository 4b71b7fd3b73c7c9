"""Values made from files that change."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.transport.door import reloaded as of_files
from edge_serve.transport.door.reloaded import Reloaded


class Number:
    """A file with a number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = 0
        self.time = 1_000_000

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.time += 1  # whatever the file system's clock can tell apart
        os.utime(self.path, (self.time, self.time))

    def load(self) -> int:
        try:
            return int(self.path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidArgument("no number") from error

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture
def number(tmp_path: Path) -> Number:
    number = Number(tmp_path / "number")
    number.write("1")
    return number


def test_a_change_is_loaded_once_it_has_settled(number: Number) -> None:
    reloaded = Reloaded("number", [str(number.path)], number.load, number.changed)
    assert reloaded.value == 1
    assert not asyncio.run(reloaded.reload_changed())
    number.write("2")
    assert not asyncio.run(reloaded.reload_changed())  # perhaps still being written
    assert reloaded.value == 1
    assert asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 2
    assert not asyncio.run(reloaded.reload_changed())
    assert number.changes == 1


def test_a_broken_change_keeps_the_old_value_and_is_reported_once(
    number: Number, caplog: pytest.LogCaptureFixture
) -> None:
    reloaded = Reloaded("number", [str(number.path)], number.load)
    number.write("two")
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 1
    assert [record.getMessage() for record in caplog.records] == [
        "number: no number; the value loaded before stays in use"
    ]
    number.write("3")
    asyncio.run(reloaded.reload_changed())
    assert asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 3


def test_a_file_that_could_not_be_read_is_tried_again(number: Number, caplog: pytest.LogCaptureFixture) -> None:
    """The file may be as it was when it becomes readable, and a token that is revoked in it must not stay in use."""
    reloaded = Reloaded("number", [str(number.path)], number.load)
    number.write("2")
    readable, number.path = number.path, number.path.with_name("elsewhere")
    for _ in range(3):
        assert not asyncio.run(reloaded.reload_changed())
    number.path = readable
    assert asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 2
    assert len(caplog.records) == 1


def test_a_change_that_keeps_size_and_time_is_loaded(number: Number) -> None:
    reloaded = Reloaded("number", [str(number.path)], number.load)
    number.path.write_text("2")
    os.utime(number.path, (number.time, number.time))
    asyncio.run(reloaded.reload_changed())
    assert asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 2


def test_a_removed_file_keeps_its_last_content_until_it_returns(number: Number) -> None:
    reloaded = Reloaded("number", [str(number.path), ""], number.load)
    number.path.unlink()
    for _ in range(3):
        asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 1
    number.write("4")
    asyncio.run(reloaded.reload_changed())
    assert asyncio.run(reloaded.reload_changed())
    assert reloaded.value == 4


def test_a_broken_file_at_the_start_is_an_error(number: Number) -> None:
    number.write("")
    with pytest.raises(InvalidArgument):
        Reloaded("number", [str(number.path)], number.load)


def test_files_that_do_not_answer_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    silence = threading.Event()
    monkeypatch.setattr(of_files, "START_SECONDS", 0.05)
    try:
        with pytest.raises(InvalidArgument, match=r"cannot read '/a', '/b': it does not answer within 0.05 s; see to"):
            Reloaded("number", ["/a", "", "/b"], silence.wait)
    finally:
        silence.set()
