"""Advice on files that OpenVINO cannot read, from their first bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from packs.openvino.advice import advice_on


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.xml", b"", "the file is empty (0 bytes): copy or export it again"),
        ("model.xml", b"../../.git/annex/objects/x", "a git-annex pointer, not the file itself: git annex get ."),
        ("model.onnx", b"<?xml version='1.0'?>", "XML: export the model again"),
        ("model.xml", b"<?xml version='1.0'?>", ""),
        ("model.onnx", b"hello", ""),
        ("model.tflite", b"\x1c\0\0\0TFL3", ""),
    ],
)
def test_the_kind_of_a_file_that_its_name_does_not_say(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    advice = advice_on("", path)
    assert said in advice
    assert bool(said) == bool(advice)
