"""The face of a model, and its labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import read_labels, signature_of
from edge_serve.config.stages import check_files
from edge_serve.errors import EdgeServeError, Unsupported
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import DataType

TEXT = """
backend: "onnxruntime" platform: "onnxruntime_onnx" max_batch_size: 4
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } allow_ragged_batch: true },
  { name: "B" data_type: TYPE_STRING dims: [ 1 ] reshape { } optional: true }
]
output { name: "Y" data_type: TYPE_BF16 dims: [ -1 ] label_filename: "labels.txt" }
"""


def test_signature() -> None:
    found = signature_of(parse_model_config(TEXT), "m", 3, {"Y": ("cat", "dog")})

    assert (found.model_name, found.model_version, found.platform) == ("m", "3", "onnxruntime_onnx")
    assert (found.max_batch_size, found.required) == (4, 1)
    assert list(found.inputs) == ["A", "B"]
    assert found.inputs["A"] == TensorSpec("A", DataType.FP32, (4,), (2, 2), allow_ragged_batch=True)
    assert found.inputs["B"] == TensorSpec("B", DataType.BYTES, (1,), (), optional=True)
    assert found.outputs["Y"] == TensorSpec("Y", DataType.BF16, (-1,), labels=("cat", "dog"))
    assert (found.decoupled, found.has_sequence_batching, found.correlation_id_type) == (False, False, None)


def test_signature_of_a_sequence_model() -> None:
    text = """
    backend: "python" model_transaction_policy { decoupled: true }
    sequence_batching { control_input [
      { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
      { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
    ] }
    """
    found = signature_of(parse_model_config(text), "m", "1")

    assert (found.platform, found.decoupled, found.has_sequence_batching) == ("python", True, True)
    assert found.correlation_id_type is DataType.BYTES


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\ndog\n", ("cat", "dog")),
        (b"cat\r\n\r\ndog", ("cat", "", "dog")),
        (b"", ()),
        ("café\n\n".encode(), ("café", "")),
        (b"\xff\n", ("\ufffd",)),
    ],
)
def test_labels(tmp_path: Path, content: bytes, labels: tuple[str, ...]) -> None:
    (tmp_path / "labels.txt").write_bytes(content)

    assert read_labels(parse_model_config(TEXT), tmp_path) == {"Y": labels}


def test_missing_label_file(tmp_path: Path) -> None:
    with pytest.raises(EdgeServeError, match=r"failed to open text file for read .*labels\.txt: No such file"):
        read_labels(parse_model_config(TEXT), tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/../secret", "link"])
def test_labels_outside_the_model_directory(tmp_path: Path, name: str) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (tmp_path / "secret").write_text("x")
    (model / "link").symlink_to(tmp_path / "secret")
    config = parse_model_config(f'name: "m" output {{ name: "Y" label_filename: "{name}" }}')

    with pytest.raises(Unsupported, match="for output 'Y' in model 'm' is outside model directory"):
        read_labels(config, model)


def test_a_label_file_with_a_leading_slash_is_one_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a\nb\n")
    config = parse_model_config('name: "m" output { name: "Y" label_filename: "//l.txt" }')

    check_files(tmp_path, config, [])
    assert read_labels(config, tmp_path) == {"Y": ("a", "b")}


def test_label_file_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").mkdir()

    with pytest.raises(EdgeServeError, match="not a file"):
        read_labels(parse_model_config(TEXT), tmp_path)
