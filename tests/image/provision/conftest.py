"""A device for each test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.image.provision.board import Board

#: tomllib came with Python 3.11, and the image has 3.13
collect_ignore_glob = ["test_*.py"] if sys.version_info < (3, 11) else []


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A new device; files are not synced, which takes long on a busy disk."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return Board(tmp_path)
