"""Parameters of PyTorch models."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.errors import InvalidArgument
from packs.pytorch.settings import settings_of


def config(**parameters: str) -> dict[str, Any]:
    return {"name": "m", "parameters": {key: {"string_value": value} for key, value in parameters.items()}}


def test_defaults_are_tritons() -> None:
    made = settings_of(config())

    assert (made.optimized, made.inference_mode, made.cudnn) == (True, True, True)
    assert (made.cache_cleaning, made.weight_sharing) == (False, False)
    assert (made.tensor_fuser, made.jit_profiling, made.jit_executor) == (None, None, None)
    assert (made.intra_op_threads, made.inter_op_threads) == (0, 0)
    assert made.lines == (
        ("Optimized execution is enabled for model instance 'm'", False),
        ("Cache Cleaning is disabled for model instance 'm'", False),
        ("Inference Mode is enabled for model instance 'm'", False),
        ("cuDNN is enabled for model instance 'm'", False),
    )


def test_every_parameter_is_read_and_told() -> None:
    made = settings_of(
        config(
            DISABLE_OPTIMIZED_EXECUTION="true", INFERENCE_MODE="false", DISABLE_CUDNN="1", ENABLE_CACHE_CLEANING="on",
            ENABLE_WEIGHT_SHARING="true", ENABLE_TENSOR_FUSER="false", ENABLE_JIT_PROFILING="true",
            ENABLE_JIT_EXECUTOR="false", INTRA_OP_THREAD_COUNT="3", INTER_OP_THREAD_COUNT="2",
        )
    )  # fmt: skip

    assert (made.optimized, made.inference_mode, made.cudnn) == (False, False, False)
    assert (made.cache_cleaning, made.weight_sharing) == (True, True)
    assert (made.tensor_fuser, made.jit_profiling, made.jit_executor) == (False, True, False)
    assert (made.intra_op_threads, made.inter_op_threads) == (3, 2)
    assert [text.removesuffix(" for model instance 'm'") for text, is_set in made.lines if is_set] == [
        "Optimized execution is disabled", "Cache Cleaning is enabled", "Inference Mode is disabled",
        "cuDNN is disabled", "Tensor fuser is disabled", "Weight sharing is enabled", "Jit profiling is enabled",
        "Jit executor is disabled", "Intra op thread count is set to 3",
    ]  # fmt: skip


def test_the_names_of_the_python_runtime_are_read() -> None:
    made = settings_of(config(NUM_THREADS="4", NUM_INTEROP_THREADS="-1"))

    assert (made.intra_op_threads, made.inter_op_threads) == (4, 0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "INFERENCE_MODE",
            "maybe",
            "failed to convert 'maybe' to boolean: write true or false for the parameter INFER",
        ),
        ("ENABLE_JIT_PROFILING", "2", "failed to convert '2' to boolean: .*ENABLE_JIT_PROFILING"),
        ("NUM_INTEROP_THREADS", "99999999999", "NUM_INTEROP_THREADS is 99999999999, expected at most 1024 threads"),
        ("INTRA_OP_THREAD_COUNT", "two", "failed to convert 'two' to integral number: write a number for the param"),
    ],
)
def test_wrong_values_are_named(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        settings_of(config(**{key: value}))
