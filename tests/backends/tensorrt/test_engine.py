"""Engines read as values through the names of TensorRT 8.6 and of 10 and 11."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_serve.backends.tensorrt.engine import DATA_TYPES, Profile, Range, TensorInfo, read_engine
from edge_serve.errors import Unsupported
from tests.backends.tensorrt.fake_engine import NO_DIMS, FakeEngine, FakeEngine8, FakeTensor

IMAGE = FakeTensor(
    "image", (-1, 3, 8, 8), "HALF", profiles=[[(1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8)], [(9, 3, 8, 8)] * 3]
)
SIZE = FakeTensor(
    "size", (3,), "INT32", location="HOST", is_shape=True,
    profiles=[[(3,)] * 3] * 2, values=[[(1, 2, 3), (4, 5, 6), (7, 8, 9)], [(9, 9, 9)] * 3],
)  # fmt: skip
SCORES = FakeTensor("scores", (-1, 10), is_input=False)


def made(kind: type[FakeEngine], *tensors: FakeTensor, profiles: int = 2) -> Any:
    return kind(tensors, num_optimization_profiles=profiles)


@pytest.mark.parametrize("kind", [FakeEngine, FakeEngine8])
def test_tensors_and_profiles(kind: type[FakeEngine]) -> None:
    found = read_engine(made(kind, IMAGE, SIZE, SCORES))

    assert found.inputs == (
        TensorInfo("image", True, "TYPE_FP16", (-1, 3, 8, 8), "HALF"),
        TensorInfo("size", True, "TYPE_INT32", (3,), "INT32", on_host=True, is_shape=True),
    )
    assert found.outputs == (TensorInfo("scores", False, "TYPE_FP32", (-1, 10), "FLOAT"),)
    assert found.profiles[0].shapes == {
        "image": Range((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8)),
        "size": Range((3,), (3,), (3,)),
    }
    assert found.profiles[1].shapes["image"] == Range((9, 3, 8, 8), (9, 3, 8, 8), (9, 3, 8, 8))
    assert (found.is_dynamic, found.has_shape_tensors) == (True, True)
    assert (found.tensor("scores"), found.tensor("score")) == (found.outputs[0], None)


def test_values_of_shape_tensors_by_release() -> None:
    newer, older = (read_engine(made(kind, SIZE, IMAGE)) for kind in (FakeEngine, FakeEngine8))

    assert newer.profiles[0].values == {"size": Range((1, 2, 3), (4, 5, 6), (7, 8, 9))}
    assert older.profiles[0].values == {"size": Range((1,), (4,), (7,))}
    # the bindings of 8.6 would return those of tensor 0 in profile 1
    assert read_engine(made(FakeEngine8, IMAGE, SIZE)).profiles[0].values == {}


def test_values_that_an_engine_does_not_tell() -> None:
    unset = FakeTensor("size", (3,), "INT64", is_shape=True, profiles=[[(3,)] * 3])
    unsized = FakeTensor("size", (-1,), "INT64", is_shape=True, profiles=[[(3,)] * 3])
    bare = made(FakeEngine8, unset, profiles=1)
    bare.get_profile_shape_input = None

    for engine in (made(FakeEngine, unset, profiles=1), made(FakeEngine, unsized, profiles=1), bare):
        assert read_engine(engine).profiles[0].values == {}


def test_device_memory_by_release() -> None:
    class Bare(FakeEngine8):
        device_memory_size = None  # type: ignore[assignment]

    assert [read_engine(made(kind, IMAGE)).device_memory_bytes for kind in (FakeEngine, FakeEngine8, Bare)] == [
        4096, 2048, 0,
    ]  # fmt: skip


def test_input_without_a_range_has_its_own_shape() -> None:
    found = read_engine(made(FakeEngine, FakeTensor("x", (2, 3)), profiles=1))
    assert found.profiles == (Profile({"x": Range((2, 3), (2, 3), (2, 3))}),)
    assert not found.is_dynamic


@pytest.mark.parametrize("kind", ["FP8", "INT4", "FP4"])
def test_types_that_cannot_be_served(kind: str) -> None:
    (found,) = read_engine(made(FakeEngine, FakeTensor("x", (1,), kind, is_input=False), profiles=0)).tensors
    assert (found.data_type, found.kind) == ("", kind)


def test_the_types_that_are_served() -> None:
    assert sorted(DATA_TYPES.values()) == [
        "TYPE_BF16", "TYPE_BOOL", "TYPE_FP16", "TYPE_FP32", "TYPE_INT32", "TYPE_INT64", "TYPE_INT8", "TYPE_UINT8",
    ]  # fmt: skip


def test_vectorized_format() -> None:
    tensors = FakeTensor("x", (1, 3, 4, 4), format="HWC8", vectorized_dim=1, components=8), FakeTensor("y", (1, 3))
    hwc8, linear = read_engine(made(FakeEngine, *tensors, profiles=0)).tensors

    assert (hwc8.format, hwc8.is_linear, hwc8.vectorized_dim, hwc8.components) == ("HWC8", False, 1, 8)
    assert (linear.is_linear, linear.components) == (True, 1)
    assert (hwc8.padding, linear.padding) == ("dimension 1 of [1,3,4,4] up to a multiple of 8", "")
    padded = [bool(replace(hwc8, shape=(1, size, 4, 4)).padding) for size in (8, 9, 16, -1)]
    assert padded == [False, True, False, True]
    assert [bool(replace(linear, format=name).padding) for name in ("DLA_HWC4", "DLA_LINEAR")] == [True, True]


def test_tensor_without_dimensions() -> None:
    (found,) = read_engine(made(FakeEngine, FakeTensor("x", NO_DIMS), profiles=0)).tensors
    assert found.shape == ()


def test_implicit_batch_is_not_supported() -> None:
    engine = made(FakeEngine8, IMAGE)
    engine.has_implicit_batch_dimension = True
    with pytest.raises(Unsupported, match="implicit batch dimension, which is not supported: build it again"):
        read_engine(engine)


def test_ranges_in_messages() -> None:
    assert str(Range((1, 3), (2, 3), (8, 3))) == "[1,3] to [8,3]"
    assert str(Range((4,), (4,), (4,))) == "[4]"
