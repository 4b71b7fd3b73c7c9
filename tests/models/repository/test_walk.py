"""The limits of a walk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_serve.errors import UnreadableEntry
from edge_serve.models.repository import walk as subject
from edge_serve.models.repository.walk import UNREADABLE, kernel_type, walk


def paths(directory: Path) -> list[str]:
    return [row[0] for row, _ in walk(directory)]


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert walk(tmp_path / "absent") == []


def test_links_to_what_leads_there_and_to_the_kernel_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    directory = tmp_path / "a" / "model"
    (elsewhere / "inside").mkdir(parents=True)
    directory.mkdir(parents=True)
    for name, target in {"up": "..", "root": "/", "proc": "/proc/self", "sys": "/sys", "else": str(elsewhere)}.items():
        (directory / name).symlink_to(target)

    assert paths(directory) == ["else", "else/inside", "proc", "root", "sys", "up"]


def test_a_directory_of_the_kernel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to("/proc/self")
    with pytest.raises(UnreadableEntry, match=r"leads to /proc/\d+, which belongs to the kernel \(proc\)"):
        walk((tmp_path / "model").resolve())


def test_the_number_of_entries_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_ENTRIES", 5)
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert len(walk(tmp_path)) == 5
    (tmp_path / "5").touch()
    with pytest.raises(UnreadableEntry, match="more than 5 files and directories"):
        walk(tmp_path)


def test_the_depth_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_LEVELS", 3)
    (tmp_path / "1/2/3").mkdir(parents=True)
    assert paths(tmp_path) == ["1", "1/2", "1/2/3"]
    (tmp_path / "1/2/3/4").mkdir()
    with pytest.raises(UnreadableEntry, match="more than 3 levels"):
        walk(tmp_path)


def test_the_time_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_SECONDS", -1)
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableEntry, match="could not be looked through"):
        walk(tmp_path)


def test_a_file_that_may_not_be_read_differs_from_one_that_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1/deep").mkdir(parents=True)
    for name in ("config.pbtxt", "1/model.py", "1/deep/file"):
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert {row[0]: row[2] for row, _ in walk(tmp_path)} == {
        "1": 0, "1/deep": 0, "1/deep/file": 1, "1/model.py": UNREADABLE, "config.pbtxt": UNREADABLE,
    }  # fmt: skip


def test_file_systems_of_the_kernel_are_known(tmp_path: Path) -> None:
    assert kernel_type(os.stat("/proc").st_dev) == "proc"
    assert kernel_type(os.stat(tmp_path).st_dev) == ""
