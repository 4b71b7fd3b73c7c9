"""golden.json and its files: each fault is one clear error."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.golden import reader
from edge_serve.golden.reader import GoldenBudget, discard, read_golden
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START
from edge_serve.messages.tensors import DataType
from tests.golden.golden_files import add_sub, document, sample


def test_a_golden_test_is_read(tmp_path: Path) -> None:
    x = np.asarray([[1.0, 2.0]], np.float32)
    text = np.asarray([b"a", b""], object)
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "mode": "fast"}
    first = sample(tmp_path, "first", {"X": x, "T": text}, {"Y": x}, parameters=parameters)
    first["outputs"][0]["rtol"] = 0.5
    document(tmp_path, first, sample(tmp_path, "stream", {"X": x}, [{"Y": x}, {}]), atol=0, budget={"p95_ms": 25})
    test = read_golden(tmp_path)

    assert test is not None
    assert test.budget == GoldenBudget(25.0, None, 20)
    one, two = test.samples
    (y,) = one.responses[0]
    assert (y.name, y.datatype, y.shape, y.rtol, y.atol) == ("Y", DataType.FP32, (1, 2), 0.5, 0.0)
    assert (one.streams, two.streams, [len(outputs) for outputs in two.responses]) == (False, True, [1, 0])
    assert two.responses[0][0].rtol == 1e-3
    request = one.request("m")
    assert (request.correlation_id, request.flags) == (7, SEQUENCE_START | SEQUENCE_END)
    assert request.parameters == {"mode": "fast"}
    assert [tensor.array().tolist() for tensor in request.inputs] == [[[1.0, 2.0]], [b"a", b""]]


def test_a_model_without_a_golden_test(tmp_path: Path) -> None:
    assert read_golden(tmp_path) is None


def at(document: Any, path: str, value: Any) -> Any:
    """Put `value` where `path` says (`samples.0.name`); None removes."""
    *way, last = [int(one) if one.isdigit() else one for one in path.split(".")]
    here = document
    for one in way:
        here = here[one]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return document


STRINGS = {"name": "S", "datatype": "BYTES", "file": "huge"}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema", 2, "schema is 2, expected 1; a newer edge-serve may know it"),
        ("schema", True, "schema is True, expected 1"),
        ("schema", None, "schema is missing"),
        ("colour", 1, "'colour' is unknown; expected schema, samples, rtol, atol, budget"),
        ("samples", [], "samples is [], expected at least one sample"),
        ("samples", {}, "samples is {}, expected a list"),
        ("samples.0", 7, "samples[0] is 7, expected an object"),
        ("samples", [1] * 2000, "samples has 2000 entries, expected at most 1000"),
        ("samples.0.name", "a\nb", "samples[0].name is 'a\\nb', expected a name in printable characters"),
        ("samples.0.Inputs", [], "samples[0].'Inputs' is unknown; expected name, inputs, parameters, outputs"),
        ("samples.0.outputs", None, "expected either outputs, or responses for a decoupled model"),
        ("samples.0.responses", [], "expected either outputs, or responses for a decoupled model"),
        ("samples.0.parameters", [], "samples[0].parameters is [], expected an object"),
        ("samples.0.parameters", {"sequence_start": 1}, "samples[0].parameters: Unable to parse 'sequence_start'"),
        ("samples.0.inputs.0.datatype", "FLOAT", "samples[0].inputs[0].datatype is 'FLOAT', expected one of BOOL"),
        ("samples.0.inputs.0.datatype", [], "samples[0].inputs[0].datatype is [], expected one of BOOL"),
        ("samples.0.inputs.0.shape", [1, -1], "inputs[0].shape is [1, -1], expected numbers that are 0 or more"),
        ("samples.0.inputs.0.shape", [1] * 300, "shape has 300 entries, expected at most 255"),
        ("samples.0.inputs.0.shape", [1, 15], "golden/first.in.INPUT0 has 64 bytes, expected 60 for INT32 [1, 15]"),
        ("samples.0.inputs.0.shape", [2**60, 2**60], "has 64 bytes, expected 531691198313966"),
        ("samples.0.inputs.0.datatype", "BYTES", ""),
        ("samples.0.inputs.1", {**STRINGS, "shape": [2000000]}, "golden/huge has 2000000 strings, expected at most 1"),
        ("samples.0.inputs.0.rtol", 1, "samples[0].inputs[0].'rtol' is unknown"),
        ("samples.0.inputs.1.name", "INPUT0", "samples[0].inputs has the name 'INPUT0' twice"),
        ("samples.0.inputs.0.file", "none", "golden/none cannot be read: No such file or directory"),
        ("samples.0.inputs.0.file", "../x", "inputs[0].file is '../x', expected the name of a file in golden/"),
        ("samples.0.inputs.0.file", "..", "expected the name of a file in golden/"),
        ("samples.0.inputs.0.file", "a\0b", "expected a name in printable characters"),
        ("samples.0.inputs.0.file", "x" * 300, "expected the name of a file in golden/"),
        ("samples.0.inputs.0.file", "pipe", "golden/pipe is a directory, a pipe, a socket or a device"),
        ("samples.0.inputs.0.file", "folder", "golden/folder is a directory, a pipe"),
        ("samples.0.inputs.0.file", "huge", "larger than 268435456 bytes together with this one, which is the limit"),
        ("samples.0.inputs.0.file", "to_nothing", "golden/to_nothing cannot be read: No such file"),
        ("samples.0.outputs.0.rtol", -1, "outputs[0].rtol is -1, expected a finite number that is 0 or more"),
        ("samples.0.outputs.0.atol", "1", "samples[0].outputs[0].atol is '1', expected a finite number"),
        ("rtol", True, "rtol is True, expected a finite number"),
        ("budget", {"p95": 1}, "budget.'p95' is unknown; expected p95_ms, memory_bytes, requests"),
        ("budget", {"p95_ms": 0}, "budget.p95_ms is 0, expected milliseconds, a number above 0"),
        ("budget", {"memory_bytes": 1.5}, "budget.memory_bytes is 1.5, expected bytes, a whole number above 0"),
        ("budget", {"requests": 0}, "budget.requests is 0, expected a whole number from 1 to 100000"),
    ],
)  # fmt: skip
def test_a_wrong_member_is_one_clear_error(tmp_path: Path, path: str, value: Any, said: str) -> None:
    golden = json.loads(add_sub(tmp_path).read_text())
    os.mkfifo(tmp_path / "golden/pipe")
    (tmp_path / "golden/folder").mkdir()
    (tmp_path / "golden/to_nothing").symlink_to("nothing")
    with (tmp_path / "golden/huge").open("wb") as huge:
        huge.truncate(1 << 30)
    (tmp_path / "golden/golden.json").write_text(json.dumps(at(golden, path, value)))
    if not said:  # seen when the file is read
        test = read_golden(tmp_path)
        assert test is not None
        with pytest.raises(InvalidArgument, match=r"golden/first\.in\.INPUT0: incomplete string|16 strings, expected"):
            test.samples[0].request("m")
        return
    with pytest.raises(InvalidArgument) as caught:
        read_golden(tmp_path)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def many_samples(golden: dict[str, Any]) -> str:
    return json.dumps({**golden, "samples": [{"name": str(i)} for i in range(100_000)]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lambda golden: "{", "golden/golden.json: it is no strict JSON in UTF-8: Expecting property name"),
        (lambda golden: "", "it is no strict JSON"),
        (lambda golden: "[1]", "the document is [1], expected an object"),
        (lambda golden: '{"schema": 1, "schema": 1}', "the member 'schema' appears twice"),
        (lambda golden: "[" * 100_000, "it is nested too deeply"),
        (lambda golden: '{"rtol": NaN}', "NaN is no number"),
        (lambda golden: '{"rtol": 1e999, "schema": 1, "samples": [1]}', "rtol is inf, expected a finite number"),
        (lambda golden: f'{{"schema": {"9" * 5000}}}', "a number has 5000 digits"),
        (lambda golden: " " * (1 << 20) + "{}", "golden/golden.json is longer than 1048576 bytes"),
        (many_samples, "golden/golden.json is longer than 1048576 bytes, which is the limit"),
        (lambda golden: '{"caf\udce9": 1}', "it is no strict JSON in UTF-8: 'utf-8' codec can't decode"),
        (lambda golden: None, "golden/golden.json cannot be read: No such file or directory; expected the golden test"),
    ],
)
def test_a_document_that_is_none_is_one_clear_error(
    tmp_path: Path, text: Callable[[dict[str, Any]], str | None], said: str
) -> None:
    path = add_sub(tmp_path)
    content = text(json.loads(path.read_text()))
    if content is None:
        path.unlink()
    else:
        path.write_text(content, errors="surrogateescape")
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        read_golden(tmp_path)
    assert time.monotonic() - began < 2


def test_other_kinds_of_files_are_refused_at_once(tmp_path: Path) -> None:
    path = add_sub(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidArgument, match=r"golden/golden\.json is a directory, a pipe"):
        read_golden(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InvalidArgument, match=r"golden/golden\.json is a directory, a pipe"):
        read_golden(tmp_path)


def test_a_large_tensor_has_separate_pages_that_are_returned(tmp_path: Path) -> None:
    x = np.arange(1 << 20, dtype=np.float32)
    document(tmp_path, sample(tmp_path, "large", {"X": x}, {}))
    test = read_golden(tmp_path)
    assert test is not None
    (tensor,) = test.samples[0].request("m").inputs
    assert np.array_equal(tensor.array(), x)
    discard([tensor])
    assert not tensor.array().any()


def test_a_file_that_changes_after_it_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_sub(tmp_path)
    test = read_golden(tmp_path)
    assert test is not None
    file = tmp_path / "golden/first.in.INPUT0"
    file.write_bytes(bytes(60))
    with pytest.raises(InvalidArgument, match=r"golden/first\.in\.INPUT0 has 60 bytes, expected 64 for INT32"):
        test.samples[0].request("m")
    monkeypatch.setattr(reader, "MOST_BYTES", 59)
    with pytest.raises(InvalidArgument, match=r"golden/first\.in\.INPUT0 is longer than 59 bytes"):
        test.samples[0].request("m")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InvalidArgument, match=r"golden/first\.in\.INPUT0 is a directory, a pipe"):
        test.samples[0].request("m")
