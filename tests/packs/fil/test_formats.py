"""Formats of model files, told apart without the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument, Unavailable
from packs.fil.formats import XGBOOST, XGBOOST_JSON, check_format, reason


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


def test_names_of_categories_have_advice_of_their_own() -> None:
    """XGBoost saves them for a table with a category column; the text is Treelite's."""
    text = (
        "[08:00:00] /src/xgboost.cc:9: Check failed: output.category_container.enc.empty(): Treelite does not yet "
        "support XGBoost models with categorical encoder\nStack trace:"
    )
    said = reason(XGBOOST_JSON, text, False)
    assert "it has the names of categories" in said
    assert "train the model on their numbers: column.cat.codes" in said
    assert "copy the file again" not in said


@pytest.mark.parametrize("is_set", [True, False])
def test_a_parameter_that_is_set_is_not_advised(is_set: bool) -> None:
    said = reason(XGBOOST_JSON, "Handler error at offset 111", is_set)
    assert "(at offset 111), or it is damaged; save a model of trees" in said
    assert ("xgboost_allow_unknown_field" in said) is not is_set
