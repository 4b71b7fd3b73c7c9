"""Settings of sessions and providers in a configuration. Texts: Triton's onnxruntime_backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.onnxruntime.settings import (
    MOST_TWICE_BYTES,
    SMALL_MODEL_BYTES,
    SPINNING,
    SessionSettings,
    default_max_batch_size,
    global_threads,
    model_bytes,
    model_path,
    session_settings,
    settings_together,
)
from edge_serve.errors import InvalidArgument


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key.replace("__", "."): {"string_value": value} for key, value in values.items()}}


def test_defaults() -> None:
    small, large = (session_settings({}, {}, size) for size in (SMALL_MODEL_BYTES - 1, SMALL_MODEL_BYTES))
    assert (small.intra_op_threads, large.intra_op_threads) == (1, 0)
    assert (large.graph_level, large.parallel, large.mem_arena, large.mem_pattern) == (0, False, None, None)
    assert (large.session_entries, large.run_entries) == (SPINNING, {})


def test_every_parameter_is_read() -> None:
    config = parameters(
        intra_op_thread_count="3", inter_op_thread_count="2", execution_mode="1", enable_mem_arena="0",
        enable_mem_pattern="True", memory__enable_memory_arena_shrinkage="cpu:0", session__set_denormal_as_zero="1",
        something_else="x",
    )  # fmt: skip
    config["optimization"] = {"graph": {"level": -1}}
    config["model_operations"] = {"op_library_filename": ["ops.so"]}
    made = session_settings(config, {}, 10)
    assert (made.intra_op_threads, made.inter_op_threads, made.parallel, made.graph_level) == (3, 2, True, -1)
    assert (made.mem_arena, made.mem_pattern) == (False, True)
    assert made.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    assert made.session_entries == {"session.set_denormal_as_zero": "1", **SPINNING}
    assert made.op_libraries == ["ops.so"]


def test_runs_side_by_side_share_the_cores() -> None:
    usual = SessionSettings(mem_arena=False)
    made = [settings_together(usual, 0, instances, cores) for instances, cores in ((2, 2), (2, 8), (4, 6), (9, 4))]
    assert made == [replace(usual, intra_op_threads=count) for count in (1, 4, 1, 1)]
    for settings, size, instances, cores in (
        (usual, 0, 1, 8),
        (usual, 0, 2, 1),
        (usual, MOST_TWICE_BYTES + 1, 2, 2),
        (SessionSettings(intra_op_threads=1), 0, 2, 2),
        (SessionSettings(global_threads=True), 0, 2, 2),
        (SessionSettings(parallel=True), 0, 2, 2),
    ):
        assert settings_together(settings, size, instances, cores) is None


def test_a_model_that_says_how_to_wait_is_left_to_it() -> None:
    made = session_settings(parameters(session__intra_op__allow_spinning="1"), {}, 10)
    assert made.session_entries == {"session.intra_op.allow_spinning": "1"}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (parameters(intra_op_thread_count="two"), "failed to convert 'two' to integral number"),
        (parameters(enable_mem_arena="perhaps"), "failed to convert 'perhaps' to boolean"),
        (
            parameters(execution_mode="2"),
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
        ),
    ],
)
def test_faulty_parameters(config: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        session_settings(config, {}, 10)
    assert caught.value.message == text


def test_settings_of_the_backend() -> None:
    assert default_max_batch_size({}, 4) == 4
    assert default_max_batch_size({"default-max-batch-size": "16"}, 4) == 16
    assert global_threads({}) is None
    assert global_threads({"enable-global-threadpool": "1", "intra_op_thread_count": "2"}) == (2, 0)
    assert session_settings({}, {"enable-global-threadpool": "1"}, 10).global_threads


def test_where_the_model_lies(tmp_path: Path) -> None:
    assert model_path(tmp_path, {}) == tmp_path / "model.onnx"
    assert model_path(tmp_path, {"default_model_filename": "net.onnx"}) == tmp_path / "net.onnx"
    (tmp_path / "model.onnx").mkdir()
    inside = model_path(tmp_path, {})
    assert inside == tmp_path / "model.onnx/model.onnx"
    inside.write_bytes(b"12345")
    (inside.parent / "weights.bin").write_bytes(b"123")
    assert model_bytes(inside) == 8
