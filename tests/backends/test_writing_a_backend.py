"""The sample of docs/writing_a_backend.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edge_serve.backends import loader
from edge_serve.backends.base import InstanceSpec, ModelSpec, Timing
from edge_serve.errors import InvalidArgument, NotFound

from .hosting import RecordingHost, installed, model_spec, request, tensor, write_model

PAGE = Path(__file__).parents[2] / "docs/writing_a_backend.md"


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    directory = write_model(tmp_path / "scaled", found[1], "backend.py")
    return model_spec(write_model(directory, "2.5\n", "1/factor.txt"), {"max_batch_size": 8})


def test_backend_beside_the_model_is_found_and_completes_the_configuration(spec: ModelSpec) -> None:
    completed = loader.load("scaled", spec).complete_config(spec)
    assert completed["max_batch_size"] == 8
    assert [entry["name"] for entry in completed["input"] + completed["output"]] == ["X", "Y"]


def test_backend_executes_batches(spec: ModelSpec) -> None:
    backend = loader.load("scaled", spec)
    with installed(host := RecordingHost()):
        first, second = backend.open(spec, [InstanceSpec("scaled_0"), InstanceSpec("scaled_1")])
    assert host.lines == [("INFO", "scaled: factor 2.5")]
    assert second.is_ready()
    rows = [np.float32([[2, 4]]), np.float32([[6, 8], [10, 12]])]  # type: ignore[arg-type]  # typed for scalars
    replies = first.execute([request(tensor("X", np.asarray(x)), outputs=["Y"]) for x in rows], Timing())
    assert [reply.outputs[0].array().tolist() for reply in replies] == [[[5, 10]], [[15, 20], [25, 30]]]
    uneven = [request(tensor("X", np.ones((1, n), np.float32))) for n in (1, 2)]
    with pytest.raises(InvalidArgument, match="equal shapes"):
        first.execute(uneven, Timing())
    first.close()
    second.close()
    backend.close()


def test_backend_names_the_missing_file(spec: ModelSpec) -> None:
    (spec.version_directory / "factor.txt").unlink()
    with pytest.raises(NotFound, match="write the factor into it"):
        loader.load("scaled", spec).open(spec, [InstanceSpec("scaled_0")])
