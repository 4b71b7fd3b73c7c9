"""Advice on ONNX files that do not load, from the library's texts (of several releases) and the files' first bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.backends.onnxruntime.advice import advice_on

BAD = "Load model from m/1/model.onnx failed:Protobuf parsing failed."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty (0 bytes): copy or export it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "43 bytes and is a Git LFS pointer, not the file itself"),
        (b"../../.git/annex/objects/x", "a git-annex pointer, not the file itself: git annex get ."),
        (b"\n<!doctype HTML>", "a web page, not the file itself"),
        (b"PK\x03\x04...", "a ZIP archive"),
        (b"\x1f\x8b\x08", "compressed by gzip: gunzip it"),
        (b"\x1c\0\0\0TFL3", "a TensorFlow Lite model: python -m tf2onnx.convert --tflite"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x08\0\0\0ORTM", 'default_model_filename: "model.ort"'),
        (b"\x80\x04\x95", "a Python pickle"),
        (b'{"learner": 1}', "JSON text"),
        (b"\x08\x07\x12\x07pytorch", "the file is 11 bytes and is no ONNX model, or not all of one"),
    ],
)  # fmt: skip
def test_the_kind_of_a_file_that_is_no_model(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert said in advice_on(BAD, path, "1.32.0", "m")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Unsupported model IR version: 11, max supported IR version: 10", "or write it with model.ir_version = 10 "),
        ("Current official support for domain ai.onnx is till opset 21.", "an opset of at most 21 "),
        ('External data path does not exist: "/r/m/1/net.data"', "put 'net.data' into m/1/"),
        ("filesystem error: in file_size: No such file or directory [/r/m/1/net.data]", "put 'net.data' into m/1/"),
        (
            "filesystem error: cannot get file size: No such file or directory [/r/m/1/net.data]",
            "put 'net.data' into m/1/",
        ),
        ('open file "/r/m/1/net.data" failed: No such file or directory', "put 'net.data' into m/1/"),
        ('Error: External data path escapes model directory. External data path: "../w"', "and put them into m/1/"),
        ("ValidateExternalDataPathFromDir Absolute path not allowed for external data location", "put them into m/1/"),
        ("Fatal error: com.acme:Blur(-1) is not a registered function/op", "has no operator com.acme:Blur: name"),
        ("Could not find an implementation for Resize(19) node with name ''", "has Resize for other data types only"),
        (
            "Type 'tensor(double)' of input parameter (probabilities) of operator (ZipMap) in node () is invalid.",
            "export with options={'zipmap': False}",
        ),
        (
            "Failed to construct locale with name:en_US.UTF-8:locale::facet::_S_create_c_locale name not valid:Please",
            "&& localedef -i en_US -f UTF-8 en_US.UTF-8",
        ),
        ("Failed to construct locale with name:de_DE:locale::facet", "-i de_DE -f UTF-8 de_DE"),
        ("anything else", ""),
    ],
)
def test_advice_by_the_library_s_text(text: str, said: str) -> None:
    advice = advice_on(text, Path("/releases/det/1/model.onnx"), "1.32.0", "m")
    assert said in advice
    assert bool(said) == bool(advice)
