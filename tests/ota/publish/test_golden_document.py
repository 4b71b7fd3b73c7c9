"""golden.json of a bundle: the publisher refuses each document that a device refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.golden.reader import read_golden
from ota.errors import OtaError, UsageError
from ota.publish.bundles.golden_document import check_files, parse_document, read_samples
from ota.publish.bundles.source import ModelSource
from tests.golden.golden_files import WRONG_MEMBERS, add_sub, document, sample, wrong_add_sub


def check(model: Path) -> None:
    """Read the golden test of a model directory as the publisher does."""
    files = {f"golden/{path.name}": path for path in (model / "golden").iterdir()}
    source = ModelSource("m", model, 1, files, [])
    check_files(source, read_samples(parse_document(source.read("golden/golden.json") or b"", "golden.json"), "m"))


MORE: list[tuple[str, Any, str]] = [
    ("x-note", 1, ""),
    ("samples.0.outputs.0.x-note", 1, ""),
    ("samples.0.name", "", ""),
    ("samples.0.parameters", {"triton_a": 1}, ""),
    ("samples.0.parameters", {"priority": -1}, ""),
    ("samples.0.parameters", {"mode": [1]}, ""),
    ("budget", {"requests": 200_000}, ""),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG_MEMBERS + MORE)
def test_a_document_that_devices_refuse_is_refused(tmp_path: Path, path: str, value: Any, said: str) -> None:
    wrong_add_sub(tmp_path, path, value)
    with pytest.raises(OtaError) as caught:
        check(tmp_path)
    assert "\n" not in caught.value.message


def test_documents_that_devices_accept(tmp_path: Path) -> None:
    x, text = np.zeros((1, 2), np.float32), np.asarray([b"a", b""], object)
    parameters = {"sequence_id": 7, "sequence_start": True, "mode": "fast"}
    first = sample(tmp_path, "first", {"X": x, "T": text}, {"Y": x}, parameters=parameters)
    stream = sample(tmp_path, "stream", {"X": x}, [{"Y": x}, {}])
    document(tmp_path, first, stream, rtol=0, budget={"p95_ms": 2, "memory_bytes": 1, "requests": 3})
    assert read_golden(tmp_path) is not None
    check(tmp_path)


def test_a_test_that_compares_nothing_is_refused(tmp_path: Path) -> None:
    path = add_sub(tmp_path)
    found = json.loads(path.read_text())
    found["samples"][0]["outputs"] = []
    path.write_text(json.dumps(found))
    with pytest.raises(UsageError, match="lists no output, so it would compare nothing"):
        check(tmp_path)
