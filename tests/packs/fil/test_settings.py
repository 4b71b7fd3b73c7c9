"""The parameters of config.pbtxt, with Triton's texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from packs.fil.settings import ForestSettings, read_settings
from tests.packs.fil.scene import parameters


def test_defaults() -> None:
    assert read_settings({}) == ForestSettings()


def test_all_of_triton() -> None:
    given = parameters(
        model_type="xgboost_ubj", is_classifier="true", predict_proba="true", threshold="0.3", cpu_nthread="2",
        xgboost_allow_unknown_field="true", storage_type="AUTO", algo="ALGO_AUTO", blocks_per_sm="4",
        threads_per_tree="1", transfer_threshold="0", use_experimental_optimizations="true", layout="layered",
        chunk_size="8",
    )  # fmt: skip
    found = read_settings(given)
    assert replace(found, notes=()) == ForestSettings("xgboost_ubj", True, True, 0.3, True, 2)
    assert found.notes == (
        "The `algo` parameter has been removed in 25.09 release. Use `layout` instead.",
        "The `threads_per_tree` parameter has been removed in 25.09 release. Use `chunk_size` instead.",
        "The `storage_type` parameter has been removed in 25.09 release.",
        "The `blocks_per_sm` parameter has been removed in 25.09 release.",
        "use_experimental_optimizations option is deprecated. It has no effect.",
    )


@pytest.mark.parametrize(
    ("old", "new", "found"), [("true", "false", True), ("false", "true", False), ("1", "true", True)]
)
def test_the_old_name_of_is_classifier(old: str, new: str, found: bool) -> None:
    settings = read_settings(parameters(output_class=old, is_classifier=new))
    assert settings.is_classifier is found
    assert settings.notes == (
        "The `output_class` parameter has been removed in 25.09 release. Use `is_classifier` instead.",
    )


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("predict_proba", "True", Internal, "Expected 'true' or 'false' for parameter 'predict_proba', got: 'True'"),
        ("is_classifier", "1", Internal, "Expected 'true' or 'false' for parameter 'is_classifier', got: '1'"),
        (
            "threshold",
            "half",
            InvalidArgument,
            "Bad input for parameter threshold: 'half', expected a number such as 0.5",
        ),
        ("cpu_nthread", "all", InvalidArgument, "Bad input for parameter cpu_nthread: 'all', expected a whole number"),
    ],
)
def test_wrong_values(name: str, value: str, error: type[EdgeServeError], text: str) -> None:
    with pytest.raises(error) as caught:
        read_settings(parameters(**{name: value}))
    assert caught.value.message == text


def test_every_thread_is_the_default_of_triton() -> None:
    assert read_settings(parameters(cpu_nthread="-1")).threads == 0


def test_states_are_noted() -> None:
    assert read_settings({"sequence_batching": {"state": []}}).notes == ()
    assert read_settings({"sequence_batching": {"state": [{"input_name": "IN", "output_name": "OUT"}]}}).notes == (
        "a forest keeps no state, so sequence_batching.state has no effect",
    )


def test_a_misspelt_name_is_noted() -> None:
    assert read_settings(parameters(predict_probab="true", EDGE_SERVE_WORKER="own")).notes == (
        "parameter 'predict_probab' has no effect, did you mean 'predict_proba'?",
    )
