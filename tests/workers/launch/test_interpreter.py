"""Whether the code of this program was replaced while it runs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from edge_serve.workers.launch.interpreter import has_changed_code


def test_modules_that_come_or_change_are_found(tmp_path: Path) -> None:
    (tmp_path / "room/__pycache__").mkdir(parents=True)
    (tmp_path / "room/a.py").touch()
    since = (tmp_path / "room/a.py").lstat().st_ctime_ns
    assert not has_changed_code(tmp_path, since)
    (tmp_path / "room/__pycache__/a.cpython-311.pyc").touch()
    assert not has_changed_code(tmp_path, since)
    while (tmp_path / "room/a.py").lstat().st_ctime_ns == since:  # the kernel's clock has ticks
        (tmp_path / "room/a.py").write_text("A = 1")
        time.sleep(0.001)
    assert has_changed_code(tmp_path, since)


def test_an_older_copy_of_a_module_counts(tmp_path: Path) -> None:
    """`pip` and `git` may keep the times of files."""
    since = time.time_ns() - 1_000_000_000
    shutil.copy2(__file__, tmp_path)
    assert has_changed_code(tmp_path, since)


def test_a_module_that_goes_meanwhile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "walk", lambda folder: [(str(folder), [], ["gone.py"])])
    assert has_changed_code(tmp_path, time.time_ns())
