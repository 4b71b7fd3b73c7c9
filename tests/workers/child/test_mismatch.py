"""Which outputs differ from the configuration, what is reported of them, and where the line is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import ModelSpec, Reply
from edge_serve.messages.tensors import InferTensor, from_array, from_numpy_type
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.wire.frames import MOST_REPORTED

CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "output": [
        {"name": "Y", "data_type": "TYPE_FP32", "dims": [2]},
        {"name": "FLAT", "data_type": "TYPE_FP32", "dims": [4], "reshape": {"shape": [2, 2]}},
        {"name": "ONE", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}},
    ],
}
PBTXT = """# output { name: "Y" }
input { name: "Y" dims: [ 7 ] }
output [
  { dims: [ 2 ]
    name: 'Y'  # data_type
    data_type: TYPE_FP32 },
  { name: "FLAT" data_type: TYPE_FP32
    reshape { shape: [ 2, 2 ] } dims: [ 4 ] } ]
"""

BATCH = ", behind a batch dimension of 3"


def tensor(name: str, *shape: int, dtype: Any = np.float32) -> InferTensor:
    array = np.ones(shape, dtype)
    datatype = from_numpy_type(array.dtype)
    assert datatype is not None
    return InferTensor(name, datatype, shape, from_array(array, datatype))


GOOD = {"Y": tensor("Y", 3, 2), "FLAT": tensor("FLAT", 3, 2, 2), "ONE": tensor("ONE", 3)}


def found(
    directory: Path, *outputs: InferTensor, names: list[str] | None = None, rows: int = 3, reply: Reply | None = None,
    **config: Any,
) -> dict[str, str]:  # fmt: skip
    """Return the mismatches of one reply, by output."""
    reported: dict[str, str] = {}

    def report(name: str, text: str) -> None:
        assert name not in reported
        reported[name] = text

    spec = ModelSpec("m", 1, directory, directory / "1", {**CONFIG, **config})
    mismatches = Mismatches(spec, report)
    for key in (b"1", b"2"):
        mismatches.check((key, rows, -1), reply or Reply(), outputs, names)
    return reported


def test_outputs_as_declared_are_not_reported(tmp_path: Path) -> None:
    assert found(tmp_path, *GOOD.values()) == {}
    assert found(tmp_path, GOOD["Y"], names=["Y"]) == {}
    assert found(tmp_path, *GOOD.values(), rows=0) == {}, "of a stream, whose responses have any number of rows"


def test_an_output_that_comes_twice_is_reported(tmp_path: Path) -> None:
    said = found(tmp_path, *GOOD.values(), GOOD["Y"])

    assert said.keys() == {"Y"}
    assert "a response has output 'Y' 2 times. Clients receive all of them" in said["Y"]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (tensor("Y", 3, 2, dtype=np.float16), "is FP16 [3, 2], but config.pbtxt line 6 says data_type: TYPE_FP32."),
        (tensor("Y", 3, 3), f"is FP32 [3, 3], but config.pbtxt line 4 says dims: [2]{BATCH}: [3, 2]."),
        (tensor("Y", 1, 2), f"is FP32 [1, 2], but config.pbtxt line 4 says dims: [2]{BATCH}: [3, 2]."),
        (tensor("FLAT", 3, 4), f"but config.pbtxt line 8 says dims: [4] and reshape: [2, 2]{BATCH}: [3, 2, 2]."),
        (tensor("ONE", 3, 1), f"but its configuration says dims: [1] and reshape: []{BATCH}: [3]."),
    ],
)  # fmt: skip
def test_the_line_is_found(tmp_path: Path, wrong: InferTensor, text: str) -> None:
    (tmp_path / "config.pbtxt").write_text(PBTXT)

    reported = found(tmp_path, *{**GOOD, wrong.name: wrong}.values())

    assert list(reported) == [wrong.name]
    assert text in reported[wrong.name]


def test_a_name_is_found_in_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.py").write_text("import x\n\ny = Tensor('FALT', z)\n")

    reported = found(tmp_path, *GOOD.values(), reply=Reply(dropped=["Y", "FALT"]))

    assert list(reported) == ["FALT"]
    assert "an output 'FALT' (model.py line 3), but" in reported["FALT"]
    assert "declares 'Y', 'FLAT', 'ONE'; did you mean 'FLAT'? Clients do not receive it" in reported["FALT"]


def test_an_output_that_a_request_lists_is_missed(tmp_path: Path) -> None:
    assert list(found(tmp_path, names=["Y"])) == ["Y"]
    assert list(found(tmp_path, GOOD["Y"])) == ["FLAT", "ONE"]
    assert found(tmp_path, names=["Y"], reply=Reply(stored=[["Y"]])) == {}, "it is in the client's memory"
    assert found(tmp_path, model_transaction_policy={"decoupled": True}) == {}, "another response may have it"


def test_states_and_scattered_outputs_are_left_alone(tmp_path: Path) -> None:
    states = {"state": [{"output_name": "S"}]}
    assert found(tmp_path, *GOOD.values(), tensor("S", 9), sequence_batching=states) == {}
    scattered = [{"target_name": ["Y"]}]
    assert found(tmp_path, *{**GOOD, "Y": tensor("Y", 9)}.values(), batch_output=scattered) == {}


def test_a_model_that_makes_up_names_does_not_fill_the_log(tmp_path: Path) -> None:
    names = [f"N{number}" for number in range(100)]

    assert len(found(tmp_path, *GOOD.values(), reply=Reply(dropped=names))) == MOST_REPORTED


def test_a_configuration_that_is_no_file_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").mkdir()

    (text,) = found(tmp_path, *{**GOOD, "Y": tensor("Y", 3, 3)}.values()).values()

    assert "but its configuration says dims" in text
