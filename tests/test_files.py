"""Small files: what is none is an error, and never a wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_serve.files import LONGEST, read_small


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    data = os.urandom(200_000)
    (tmp_path / "file").write_bytes(data)

    assert read_small(tmp_path / "file") == data
    assert len(read_small("/proc/sys/kernel/random/boot_id")) == 37


@pytest.mark.parametrize(
    ("path", "reason"), [("fifo", "no regular file"), (".", "Is a directory"), ("none", "No such")]
)
def test_a_path_that_is_no_file_is_an_error(path: str, reason: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match=reason):
        read_small(tmp_path / path)


def test_a_file_without_an_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no regular file"):
        read_small("/dev/zero")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(LONGEST + 1)
    with pytest.raises(OSError, match="longer than"):
        read_small(tmp_path / "huge")
