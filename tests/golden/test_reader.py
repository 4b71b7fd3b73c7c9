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
from tests.golden.golden_files import WRONG_MEMBERS, add_sub, document, sample, wrong_add_sub


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


@pytest.mark.parametrize("kind", ["file", "dangling", "circle"])
def test_a_golden_test_that_is_no_directory_does_not_switch_the_test_off(tmp_path: Path, kind: str) -> None:
    golden = tmp_path / "golden"
    golden.write_text("") if kind == "file" else golden.symlink_to("gone" if kind == "dangling" else "golden")
    with pytest.raises(InvalidArgument, match="golden is no directory, or a link to none"):
        read_golden(tmp_path)


@pytest.mark.parametrize(("path", "value", "said"), WRONG_MEMBERS)
def test_a_wrong_member_is_one_clear_error(tmp_path: Path, path: str, value: Any, said: str) -> None:
    wrong_add_sub(tmp_path, path, value)
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


def test_a_test_without_outputs_is_read_and_compares_nothing(tmp_path: Path) -> None:
    x = {"X": np.zeros(1, np.float32)}
    document(tmp_path, sample(tmp_path, "a", x, {}), sample(tmp_path, "b", x, {}))
    test = read_golden(tmp_path)
    assert test is not None
    with pytest.raises(InvalidArgument, match="no sample lists an output, so the test would compare nothing"):
        test.check_compares()
    accepted: list[Any] = [x, [x], [{}], []]
    for outputs in accepted:
        document(tmp_path, sample(tmp_path, "a", x, {}), sample(tmp_path, "b", x, outputs))
        test = read_golden(tmp_path)
        assert test is not None
        test.check_compares()


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
