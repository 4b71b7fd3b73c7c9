"""Completion of a configuration, and its check against the forest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_serve.errors import EdgeServeError
from packs.fil.forest import Facts, Task
from packs.fil.settings import ForestSettings
from packs.fil.signature import complete, make_plan
from tests.packs.fil.scene import tensors

FLOAT = np.dtype(np.float32)
BINARY = Facts(Task.BINARY, 12, 60, 1, 1, FLOAT)
CLASSES = Facts(Task.CLASSES, 12, 60, 1, 3, FLOAT)
REGRESSION = Facts(Task.REGRESSION, 12, 60, 1, 1, FLOAT)
TARGETS = Facts(Task.REGRESSION, 12, 60, 2, 1, FLOAT)
PROBA, PLAIN = ForestSettings(predict_proba=True), ForestSettings()


@pytest.mark.parametrize(
    ("facts", "settings", "dims"),
    [
        (BINARY, PLAIN, [1]), (BINARY, PROBA, [2]), (CLASSES, PLAIN, [1]), (CLASSES, PROBA, [3]),
        (REGRESSION, PLAIN, [1]), (REGRESSION, PROBA, [1]), (TARGETS, PLAIN, [2]),
        (CLASSES, ForestSettings(is_classifier=False), [3]),
    ],
)  # fmt: skip
def test_completion(facts: Facts, settings: ForestSettings, dims: list[int]) -> None:
    made = complete({"name": "m"}, facts, settings, 16)
    assert made == {
        "name": "m",
        "max_batch_size": 16,
        "dynamic_batching": {},
        "input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [12]}],
        "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": dims}],
    }
    make_plan(made, facts, settings)


def test_completion_without_batching() -> None:
    made = complete({}, BINARY, PROBA, 0)
    assert (made["input"][0]["dims"], made["output"][0]["dims"]) == ([-1, 12], [-1, 2])
    assert "dynamic_batching" not in made


def changed(side: str, **values: Any) -> dict[str, Any]:
    """Return a good configuration of BINARY with one entry changed."""
    config = tensors(12, 1)
    config[side][0].update(values)
    return config


WRONG: list[tuple[dict[str, Any], Facts, ForestSettings, str]] = [
    (
        changed("input", dims=[13]),
        BINARY,
        PLAIN,
        r"input 'input__0' has dims \[13\] .* 12 features: write dims: \[ 12 \]",
    ),
    (
        tensors(12, 1) | {"max_batch_size": 0, "input": [{**tensors(12, 1)["input"][0], "dims": [2, 6]}]},
        BINARY,
        PLAIN,
        r"has dims \[2, 6\] .* write dims: \[ 12 \]",
    ),
    (changed("input", optional=True), BINARY, PLAIN, "input 'input__0' is optional in config.pbtxt"),
    (changed("input", name="x"), BINARY, PLAIN, "expected one input, named 'input__0', and config.pbtxt has 'x'"),
    (changed("input", data_type="TYPE_INT64"), BINARY, PLAIN, "input 'input__0' is TYPE_INT64 .* expected TYPE_FP32"),
    (changed("output", name="y"), BINARY, PLAIN, "No output with name output__0 in configuration. Config.pbtxt has y"),
    (changed("output", data_type="TYPE_BOOL"), BINARY, PLAIN, "output 'output__0' is TYPE_BOOL"),
    (changed("output", dims=[3]), CLASSES, PLAIN, r"has 1 value for each row: write dims: \[ 1 \] for the class, or"),
    (changed("output", dims=[2]), CLASSES, PROBA, r"has 3 values for each row: write dims: \[ 3 \]"),
    (changed("output", dims=[1]), CLASSES, ForestSettings(is_classifier=False), 'or is_classifier "true"'),
    (tensors(12, 2), TARGETS, ForestSettings(is_classifier=True), "Multi-target model not supported; the file has 2"),
]


@pytest.mark.parametrize(("config", "facts", "settings", "text"), WRONG)
def test_a_configuration_that_does_not_fit(
    config: dict[str, Any], facts: Facts, settings: ForestSettings, text: str
) -> None:
    with pytest.raises(EdgeServeError, match=text):
        make_plan(config, facts, settings)


def test_another_output_is_refused() -> None:
    config = tensors(12, 1)
    config["output"].append({"name": "more", "data_type": "TYPE_FP32", "dims": [1]})
    with pytest.raises(EdgeServeError, match="unexpected output 'more', expected 'output__0'"):
        make_plan(config, BINARY, PLAIN)
