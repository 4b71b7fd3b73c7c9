"""The versions of a pack: made, found, replaced, and deleted when no process uses them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.errors import Unavailable
from edge_serve.files import lock_shared, locked
from edge_serve.pack.versions import new_version, sweep, switch, take_away


def make(root: Path, text: str, name: str = "own") -> Path:
    """Make a version, and switch to it; its directory."""
    with new_version(name, root) as version:
        (version / "text").write_text(text)
        switch(version, root / name)
    return version


def test_the_link_names_the_version_that_was_made_last(tmp_path: Path) -> None:
    first = make(tmp_path, "1")
    assert (tmp_path / "own/text").read_text() == "1"
    assert not Path(os.readlink(tmp_path / "own")).is_absolute()  # the directory may be moved as a whole
    second = make(tmp_path, "2")
    assert (tmp_path / "own/text").read_text() == "2"
    assert first.is_dir()
    assert sweep("own", tmp_path) == []
    assert [first.exists(), second.exists()] == [False, True]


def test_a_version_in_use_stays(tmp_path: Path) -> None:
    first = make(tmp_path, "1")
    lock = lock_shared(first)
    make(tmp_path, "2")
    assert sweep("own", tmp_path) == [first]
    assert (first / "text").read_text() == "1"
    os.close(lock)
    assert sweep("own", tmp_path) == []
    assert not first.exists()


def test_a_version_that_is_made_is_in_use(tmp_path: Path) -> None:
    with new_version("own", tmp_path) as version:
        assert sweep("own", tmp_path) == [version]
        with pytest.raises(BlockingIOError), locked(version, fcntl.LOCK_EX | fcntl.LOCK_NB):
            pass


def test_nothing_is_left_of_a_version_that_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_version("own", tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_during_the_last_sync_leaves_the_new_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    make(tmp_path, "1")
    monkeypatch.setattr(os, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, "2")
    assert (tmp_path / "own/text").read_text() == "2"


def test_a_version_that_is_served_is_not_reported(tmp_path: Path) -> None:
    lock = lock_shared(make(tmp_path, "1"))
    assert sweep("own", tmp_path) == []
    os.close(lock)


def test_the_version_that_is_served_can_be_locked_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make(tmp_path, "1"), make(tmp_path, "2")
    tried = []

    @contextlib.contextmanager
    def recorded(version: Path, how: int) -> Iterator[None]:
        tried.append(version)
        yield

    monkeypatch.setattr("edge_serve.pack.versions.locked", recorded)
    assert sweep("own", tmp_path) == []
    assert tried == [first]
    assert second.is_dir()


def test_a_directory_that_was_made_by_hand_is_replaced_and_removed_while_it_is_not_used(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    lock = lock_shared(own)
    for change in (lambda: make(tmp_path, "1"), lambda: take_away(own)):
        with pytest.raises(Unavailable, match=r"was made by hand, and a server uses it: unload its models"):
            change()
        assert list(tmp_path.iterdir()) == [own], "nothing is left of the version"
    os.close(lock)
    make(tmp_path, "1")
    assert sweep("own", tmp_path) == []
    assert (own / "text").read_text() == "1"


def test_a_directory_that_was_made_by_hand_is_removed_on_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    (tmp_path / "own").mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    take_away(tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_packs_whose_names_begin_alike_are_apart(tmp_path: Path) -> None:
    other = make(tmp_path, "other", "own-b")
    make(tmp_path, "1")
    take_away(tmp_path / "own-b")
    assert sweep("own", tmp_path) == []
    assert other.is_dir()
    assert sweep("own-b", tmp_path) == []
    assert not other.exists()
