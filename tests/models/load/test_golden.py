"""Which golden tests fit a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import signature_of
from edge_serve.errors import InvalidArgument
from edge_serve.golden.reader import GoldenTest, read_golden
from edge_serve.messages.signature import Signature
from edge_serve.models.load.golden import check_fit, request_of
from tests.golden.golden_files import document, sample
from tests.server.running import ADD_SUB_CONFIG

X, Y = np.zeros((1, 16), np.int32), np.zeros((1, 16), np.float32)
BOTH = {"INPUT0": X, "INPUT1": X}


def fit(test: GoldenTest, signature: Signature) -> None:
    check_fit(test, signature)
    request_of(test.samples[0], signature)


@pytest.mark.parametrize(
    ("inputs", "outputs", "decoupled", "said"),
    [
        ({"INPUT0": X, "NONE": X}, {}, False, "unexpected inference input 'NONE' for model 'm'"),
        ({"INPUT0": X}, {}, False, "expected 2 inputs but got 1 inputs for model 'm'"),
        ({"INPUT0": X, "INPUT1": Y}, {}, False, "data-type is 'FP32', but model 'm' expects 'INT32'"),
        ({"INPUT0": X, "INPUT1": X[:, :8]}, {}, False, "unexpected shape for input 'INPUT1' for model 'm'"),
        ({"INPUT0": np.zeros((9, 16), np.int32), "INPUT1": np.zeros((9, 16), np.int32)}, {}, False, "must be <= 8"),
        (BOTH, {"NONE": X}, False, "found output 'NONE', expected one of OUTPUT0, OUTPUT1"),
        (BOTH, [{"OUTPUT0": X}], False, "the model is not decoupled: expected 'outputs'"),
        (BOTH, {"OUTPUT0": X}, True, "the model is decoupled: expected 'responses'"),
    ],
)
def test_a_test_that_does_not_fit_the_model(
    tmp_path: Path, inputs: Any, outputs: Any, decoupled: bool, said: str
) -> None:
    document(tmp_path, sample(tmp_path, "s", inputs, outputs))
    test = read_golden(tmp_path)
    assert test is not None
    more = "model_transaction_policy { decoupled: true }" if decoupled else ""
    signature = signature_of(parse_model_config(f'name: "m" {ADD_SUB_CONFIG}{more}'.encode(), "m"), "m", 1)
    prefix = "golden/golden.json: sample 's' does not fit the model: "
    with pytest.raises(InvalidArgument, match=f"^{prefix}.*{re.escape(said)}"):
        fit(test, signature)
