"""The look at the clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from image.device import report
from image.device.console import clock

#: the date of the build: 2026-11-23
BUILT = 1_795_392_000.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of an image that has just been started."""
    (tmp_path / "run/systemd/timesync").mkdir(parents=True)
    (tmp_path / clock.BUILT).parent.mkdir(parents=True)
    (tmp_path / clock.BUILT).touch()
    os.utime(tmp_path / clock.BUILT, (BUILT, BUILT))
    return tmp_path


@pytest.mark.parametrize(
    ("now", "uptime", "wrong"),
    [
        (90.0, 90.0, True),  # 1970
        (BUILT + 85.0, 90.0, True),  # systemd set the clock to the date of the build, 5 s after the start
        (BUILT + 86_485.0, 86_490.0, True),  # a day later
        (BUILT + 3600.0, 90.0, False),  # a battery, or the last answer of a time server
        (BUILT + 1e8, 9e7, False),
    ],
)
def test_a_clock_that_was_never_set_is_reported(root: Path, now: float, uptime: float, wrong: bool) -> None:
    clock.look(now, uptime, root, root / "run")
    assert [one["code"] for one in report.faults(root / "run")] == ["clock"] * wrong


def test_the_fault_ends_when_a_time_server_answers(root: Path) -> None:
    clock.look(90.0, 90.0, root, root / "run")
    (fault,) = report.faults(root / "run")
    assert fault["text"] == "The clock was never set: it shows 1970-01-01, and this system was built on 2026-11-23."
    (root / clock.SYNCHRONIZED).touch()
    clock.look(BUILT + 1000.0, 100.0, root, root / "run")
    assert report.faults(root / "run") == []


def test_a_root_without_its_file_of_the_release_is_no_fault(tmp_path: Path) -> None:
    clock.look(90.0, 90.0, tmp_path, tmp_path)
    assert report.faults(tmp_path) == []
