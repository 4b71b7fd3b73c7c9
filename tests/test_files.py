"""Small files: what is none is an error, and never a wait."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.files import LONGEST, find_within, lock_shared, path_of, read_small, write_durably


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


def test_a_file_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    def blocks() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk is full")

    path = tmp_path / "file"
    write_durably(path, [b"old ", b"one"])
    with pytest.raises(OSError, match="the disk is full"):
        write_durably(path, blocks())
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old one", ["file"])


def test_an_error_of_two_paths_is_about_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as one:
        (tmp_path / "none").read_bytes()
    with pytest.raises(FileNotFoundError) as two:
        (tmp_path / "none/link").symlink_to(tmp_path)
    assert path_of(one.value) == f"{tmp_path}/none"
    assert path_of(two.value) == f"{tmp_path}/none/link"
    assert path_of(OSError(5, "text")) == ""


def test_an_entry_that_is_being_removed_cannot_be_locked(tmp_path: Path) -> None:
    first, second = lock_shared(tmp_path, os.O_DIRECTORY), lock_shared(tmp_path, os.O_DIRECTORY)
    os.close(first)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as by a server that removes it
    with pytest.raises(BlockingIOError):
        lock_shared(tmp_path, os.O_DIRECTORY)
    os.close(second)
    with pytest.raises(FileNotFoundError):
        lock_shared(tmp_path / "gone")


def test_a_name_is_found_in_its_directory_alone(tmp_path: Path) -> None:
    assert find_within(tmp_path, "a/../b") == tmp_path / "b"
    assert find_within(tmp_path, ".") == tmp_path
    assert {find_within(tmp_path, name) for name in ("..", "a/../../b", "/", f"{tmp_path}x")} == {None}
