"""A client's memory as a worker sees it: copies, views, and files that change under it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edge_serve.backends.cuda import device_data
from edge_serve.backends.cuda.device_data import upload
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.tensors import Buffer
from edge_serve.workers.child.memory.arena_imports import COPIED_BYTES, ClientRegion
from tests.backends.cuda.counting import CountingCuda

PAGE = 4096
LARGE = COPIED_BYTES + PAGE


def region(path: Path, size: int = 4 * LARGE, offset: int = 0) -> ClientRegion:
    """Of a file in which each byte tells its page."""
    path.write_bytes(b"".join(bytes([number % 251]) * PAGE for number in range(-(-(size + offset) // PAGE))))
    return ClientRegion("r", offset, size, os.open(path, os.O_RDWR))


@pytest.mark.parametrize("offset", [0, 2 * PAGE])
def test_inputs_are_views_of_the_file(tmp_path: Path, offset: int) -> None:
    made = region(tmp_path / "k", offset=offset)
    for start, size in ((offset, 1), (offset + PAGE - 1, 2), (offset + PAGE, LARGE)):
        expected = (tmp_path / "k").read_bytes()[start : start + size]
        assert bytes(made.read(start, size)) == bytes(made.read(start, size, copy=True)) == expected
    assert made.read(offset, 0) == b""


def test_many_bytes_are_a_view_that_cannot_be_written_to(tmp_path: Path) -> None:
    made = region(tmp_path / "k")
    few, many, copy = made.read(0, 8), made.read(0, LARGE), made.read(0, LARGE, copy=True)
    with open(tmp_path / "k", "r+b") as file:
        file.write(b"\xff" * 8)

    assert bytes(few) == bytes(copy[:8]) == bytes(8)
    assert bytes(many[:8]) == b"\xff" * 8
    assert not np.frombuffer(many, np.uint8).flags.writeable
    assert np.frombuffer(copy, np.uint8).flags.writeable


def test_the_mapping_lives_as_long_as_a_view(tmp_path: Path) -> None:
    made = region(tmp_path / "k")
    view = made.read(PAGE, LARGE)
    del made
    assert bytes(view[:1]) == b"\x01"
    assert str(tmp_path / "k") in Path("/proc/self/maps").read_text()
    del view
    assert str(tmp_path / "k") not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("size", "copy"), [(8, False), (LARGE, False), (LARGE, True)])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_became_smaller_is_an_error(tmp_path: Path, size: int, copy: bool, mapped: bool) -> None:
    made = region(tmp_path / "k")
    if mapped:
        made.read(0, LARGE)
    os.truncate(tmp_path / "k", PAGE)
    with pytest.raises(InvalidArgument, match=r"'r' has 4096 bytes now, .* are needed: it was made smaller"):
        made.read(2 * PAGE, size, copy=copy)
    with pytest.raises(InvalidArgument, match="was made smaller"):
        made.write(PAGE - 1, b"ab")
    assert os.path.getsize(tmp_path / "k") == PAGE


@pytest.mark.parametrize("count", [4, LARGE // 4])
def test_outputs_are_written_into_the_file(tmp_path: Path, count: int) -> None:
    made = region(tmp_path / "k", offset=PAGE)
    for first in range(2):
        made.write(2 * PAGE - 4, np.arange(first, count + first, dtype="<i4").data)
        found = np.fromfile(tmp_path / "k", "<i4", count, offset=2 * PAGE - 4)
        assert found.tolist() == list(range(first, count + first))


def test_outputs_on_a_gpu_are_written_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = CountingCuda()
    monkeypatch.setattr(device_data, "process_cuda", lambda: cuda)
    made = region(tmp_path / "k")
    values = np.arange(LARGE // 4, dtype="<i4")
    made.write(PAGE, cast(Buffer, upload(values.tobytes(), 0)))
    assert np.fromfile(tmp_path / "k", "<i4", LARGE // 4, offset=PAGE).tolist() == values.tolist()


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_write_that_the_system_refuses_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "k").write_bytes(bytes(LARGE))
    made = ClientRegion("r", 0, LARGE, os.open(tmp_path / "k", os.O_RDONLY))
    with pytest.raises(Internal, match="shared memory region 'r' cannot be written: Bad file descriptor"):
        made.write(0, bytes(size))
