"""A repository on a stick."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ota.errors import FetchError, NotInRepository
from ota.fetch.directory import DirectorySource

from .steps import noise

DATA = noise(600_000)


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    folder = tmp_path / "stick"
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata/timestamp.json").write_bytes(b"{}")
    (folder / "blobs").mkdir()
    (folder / "blobs/one").write_bytes(DATA)
    return folder


def test_files_come_whole_and_in_part(stick: Path) -> None:
    with DirectorySource(stick) as source:
        assert source.get("metadata/timestamp.json", 2) == b"{}"
        assert b"".join(source.stream("blobs/one", 0, len(DATA))) == DATA
        assert b"".join(source.stream("blobs/one", 599_999, len(DATA))) == DATA[-1:]
        with pytest.raises(NotInRepository, match="blobs/two does not exist"):
            source.get("blobs/two", 10)


def test_another_length_is_refused(stick: Path) -> None:
    with DirectorySource(stick) as source:
        with pytest.raises(FetchError, match="has 2 bytes, expected at most 1"):
            source.get("metadata/timestamp.json", 1)
        with pytest.raises(FetchError, match="has 600000 bytes, expected 600001: copy to the stick again"):
            list(source.stream("blobs/one", 0, len(DATA) + 1))


@pytest.mark.fault("X1")
@pytest.mark.parametrize("link", ["metadata", "blobs", "blobs/one"])
def test_no_link_is_followed(stick: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    (stick / link).rename(outside)
    (stick / link).symlink_to(outside)
    path = "metadata/timestamp.json" if link == "metadata" else "blobs/one"
    with DirectorySource(stick) as source, pytest.raises(FetchError) as caught:
        source.get(path, len(DATA))
    assert "symbolic link" in caught.value.message or "has no metadata/" in caught.value.message


@pytest.mark.fault("X1")
@pytest.mark.parametrize("path", ["../secret", "blobs/../../secret", "/etc/passwd", "blobs//one", "./blobs/one", ""])
def test_no_path_leads_out(stick: Path, path: str) -> None:
    (stick.parent / "secret").write_bytes(b"secret")
    with DirectorySource(stick) as source, pytest.raises(FetchError, match="is not a path below"):
        source.get(path, 10**6)


@pytest.mark.fault("X1")
def test_a_fifo_does_not_hold_up(stick: Path) -> None:
    os.mkfifo(stick / "blobs/fifo")
    with DirectorySource(stick) as source, pytest.raises(FetchError, match="is not a regular file"):
        source.get("blobs/fifo", 10)


@pytest.mark.fault("X1")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ESTALE])
def test_a_stick_that_is_pulled_while_it_is_read(stick: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if offset:
            raise OSError(number, os.strerror(number))
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    came: list[bytes] = []
    with DirectorySource(stick) as source, pytest.raises(FetchError, match=r"cannot read blobs/one .*pulled out"):
        came.extend(source.stream("blobs/one", 0, len(DATA)))
    assert len(came) == 1


@pytest.mark.fault("X1")
def test_files_of_a_removed_stick_are_not_missing(stick: Path) -> None:
    with DirectorySource(stick) as source:
        source.get("metadata/timestamp.json", 2)
        (stick / "metadata/timestamp.json").unlink()
        (stick / "metadata").rmdir()
        with pytest.raises(FetchError, match="pulled out") as caught:
            source.get("blobs/two", 10)
    assert not isinstance(caught.value, NotInRepository)


@pytest.mark.fault("X1")
def test_a_file_that_shrinks(stick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectorySource(stick) as source:
        stream = source.stream("blobs/one", 0, len(DATA))
        next(stream)
        os.truncate(stick / "blobs/one", 300_000)
        with pytest.raises(FetchError, match="ended after 300000 of 600000 bytes"):
            list(stream)


def test_no_repository_there(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"No such file or directory; expected a directory made by 'edge-ota publish"):
        DirectorySource(tmp_path / "none").get("x", 1)
    with pytest.raises(FetchError, match="has no metadata/: expected"):
        DirectorySource(tmp_path).get("x", 1)
    with pytest.raises(FetchError, match="Not a directory"):
        DirectorySource(Path("/etc/passwd")).get("x", 1)


def test_a_file_that_may_not_be_read(stick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectorySource(stick) as source:
        source.get("metadata/timestamp.json", 2)
        real = os.open

        def refuse(path: str, *rest: int, **more: int) -> int:
            if path == "one":
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(FetchError, match="Permission denied: make it readable for the user edge-ota"):
            source.get("blobs/one", 10)
