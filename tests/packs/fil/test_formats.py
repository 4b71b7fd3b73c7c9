"""Formats of model files, told apart without the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument, Unavailable
from packs.fil.formats import XGBOOST, XGBOOST_JSON, check_format


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read: Is a directory; give the server's user the right"):
        check_format(tmp_path, XGBOOST_JSON)


@pytest.mark.parametrize("first", [0x7B, 0x80, 0x08, 0x50])
def test_the_old_format_of_xgboost_may_begin_with_any_byte(first: int, tmp_path: Path) -> None:
    """With the lowest byte of the base score."""
    file = tmp_path / "xgboost.model"
    file.write_bytes(bytes([first, 0xCC, 0x4C, 0x3F]) + bytes(100))
    check_format(file, XGBOOST)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\x80\x04\x95", "is a pickle"),
        (b"\x08\x08\x12\x07skl2onnx", "is an ONNX file"),
        (b'{ "learner": {', "looks like XGBoost's JSON"),
        (b"PK\x03\x04", "is a ZIP archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, .*: git lfs pull"),
    ],
)
def test_other_files_in_its_place_are_named(start: bytes, text: str, tmp_path: Path) -> None:
    file = tmp_path / "xgboost.model"
    file.write_bytes(start + bytes(100))
    with pytest.raises(InvalidArgument, match=text):
        check_format(file, XGBOOST)
