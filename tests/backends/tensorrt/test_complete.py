"""Auto-completion from an engine. Texts: tensorrt_backend src/model_state.cc."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.backends.tensorrt.checks import check_tensorrt
from edge_serve.backends.tensorrt.complete import complete_tensorrt, largest_batch
from edge_serve.backends.tensorrt.engine import DATA_TYPES, EngineInfo, Profile
from edge_serve.backends.tensorrt.profiles import instance_profiles
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model.normalise import normalise
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from tests.backends.tensorrt.fake_engine import batching, engine, output, profile, span, tensor

GPU = {"name": "m", "instance_group": [{"kind": "KIND_GPU"}]}
FLAGS: dict[str, Any] = {"is_shape_tensor": False, "is_non_linear_format_io": False}


def config(**more: Any) -> dict[str, Any]:
    return {**GPU, **more}


def entry(name: str, dims: list[int], data_type: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **more}


def refused(given: dict[str, Any], found: EngineInfo) -> EdgeServeError:
    with pytest.raises(EdgeServeError) as failed:
        complete_tensorrt(given, found)
    return failed.value


def test_everything_from_the_engine() -> None:
    assert complete_tensorrt(config(), batching()) == {
        **GPU,
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [entry("x", [3], **FLAGS)],
        "output": [entry("y", [2], **FLAGS)],
    }


def test_the_given_configuration_stays_as_it_is() -> None:
    given = config(input=[entry("x", [])])
    complete_tensorrt(given, batching())
    assert given == config(input=[entry("x", [])])


def test_batch_is_the_least_over_the_inputs_and_the_most_over_the_profiles() -> None:
    first = profile(a=span((1, 2), (1, 2), (4, 2)), b=span((1,), (1,), (8,)))
    second = profile(a=span((1, 2), (1, 2), (6, 2)), b=span((1,), (1,), (5,)))
    found = engine(tensor("a", (-1, 2)), tensor("b", (-1,)), profiles=[first, second])

    assert [largest_batch(each, found) for each in (first, second)] == [4, 5]
    for groups, batch in (([["0"]], 4), ([["1"]], 5), ([["0"], ["1"]], 5), ([["0", "1"]], 5), ([[]], 4)):
        given = {"name": "m", "instance_group": [{"kind": "KIND_GPU", "profile": names} for names in groups]}
        assert complete_tensorrt(given, found)["max_batch_size"] == batch


@pytest.mark.parametrize("inputs", [(), (tensor("x", ()),), (tensor("x", ()), tensor("z", (4,)))])
def test_engine_whose_inputs_have_no_batch(inputs: tuple[Any, ...]) -> None:
    done = complete_tensorrt(config(), engine(*inputs, output("y", (2, 3))))
    assert (done["max_batch_size"], "dynamic_batching" in done) == (0, False)
    assert done["output"] == [entry("y", [2, 3], **FLAGS)]


def test_batch_of_one_has_no_dynamic_batching() -> None:
    done = complete_tensorrt(config(), engine(tensor("x", (1, 3)), output("y", (1, 2))))
    assert (done["max_batch_size"], "dynamic_batching" in done) == (1, False)
    assert done["input"] == [entry("x", [3], **FLAGS)]


@pytest.mark.parametrize("scheduler", [{"sequence_batching": {}}, {"dynamic_batching": {"preferred_batch_size": [2]}}])
def test_named_scheduler_stays(scheduler: dict[str, Any]) -> None:
    done = complete_tensorrt(config(**scheduler), batching())
    assert {key: done[key] for key in ("sequence_batching", "dynamic_batching") if key in done} == scheduler


def test_smaller_batch_of_the_configuration_stays() -> None:
    assert complete_tensorrt(config(max_batch_size=2), batching())["max_batch_size"] == 2


def test_larger_batch_than_the_engine_has() -> None:
    error = refused(config(max_batch_size=9), batching())
    assert isinstance(error, Internal)
    assert error.message == (
        "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only supports "
        "max-batch 8; write max_batch_size: 8, or build the engine with a profile of 9"
    )


def test_profile_that_the_engine_lacks() -> None:
    given = {"name": "m", "instance_group": [{"kind": "KIND_GPU", "profile": ["0", "3"]}]}
    error = refused(given, batching())
    assert isinstance(error, Internal)
    assert error.message == (
        "unable to autofill for 'm', configuration specified invalid profile 3 . Number of profiles supported by "
        "TensorRT engine: 1"
    )


def test_dims_with_the_batch_hint_that_the_model_does_not_batch() -> None:
    done = complete_tensorrt(config(input=[entry("x", [4, 3])]), batching())
    assert (done["max_batch_size"], "dynamic_batching" in done) == (0, False)
    assert done["output"] == [entry("y", [-1, 2], **FLAGS)]
    assert (
        "max-batch 2 but TensorRT engine only supports max-batch 0"
        in refused(config(max_batch_size=2, input=[entry("x", [4, 3])]), batching()).message
    )


@pytest.mark.parametrize(
    "given",
    [
        {"input": [entry("x", [3])]}, {"output": [entry("y", [2])]},
        {"input": [entry("x", [3, 1], reshape={"shape": [3]})]},
        {"input": [entry("x", [-1, 3], allow_ragged_batch=True)]},
    ],
)  # fmt: skip
def test_dims_without_the_batch_hint_that_the_model_batches(given: dict[str, Any]) -> None:
    assert complete_tensorrt(config(**given), batching())["max_batch_size"] == 8


def test_hint_for_a_model_that_cannot_batch() -> None:
    error = refused(config(input=[entry("x", [3])]), engine(tensor("x", (2, 3)), tensor("z", ()), output("y", (2,))))
    assert isinstance(error, Internal)
    assert error.message == (
        "autofill failed for model 'm': model tensor shape configuration hints for dynamic batching but the underlying "
        "engine doesn't support batching."
    )


@pytest.mark.parametrize(
    ("x", "y"), [([3], [4, 2]), ([4, 3], [2])],
)  # fmt: skip
def test_contradicting_hints(x: list[int], y: list[int]) -> None:
    error = refused(config(input=[entry("x", x)], output=[entry("y", y)]), batching())
    assert isinstance(error, Internal)
    assert error.message == (
        "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of whether "
        "batching is supported; the engine has x [-1,3], y [-1,2]"
    )


@pytest.mark.parametrize("side", ["input", "output"])
def test_tensor_that_the_engine_lacks(side: str) -> None:
    error = refused(config(**{side: [entry("z", [3])]}), batching())
    name = "x" if side == "input" else "y"
    assert isinstance(error, InvalidArgument)
    assert error.message == (f"unexpected inference {side} 'z', allowed {side}s are: {name}; write name: \"{name}\"")


def test_absent_parts_of_an_entry_are_filled_in() -> None:
    found = batching()
    full = [entry("x", [3], **FLAGS)]
    for part in (
        {"name": "x"},
        {"name": "x", "data_type": "TYPE_INVALID", "dims": []},
        {"name": "x", "data_type": "", "dims": [3], "is_shape_tensor": False},
    ):
        assert complete_tensorrt(config(input=[part]), found)["input"] == full
    kept = entry("x", [1, 3], "TYPE_FP16", reshape={"shape": [3]})
    assert complete_tensorrt(config(input=[kept]), found)["input"] == [{**kept, **FLAGS}]


def test_tensors_that_are_not_listed_are_not_added() -> None:
    found = engine(tensor("x", (-1, 3)), tensor("z", (-1, 1)), output("y", (-1,)), profiles=[
        profile(x=span((1, 3), (4, 3), (8, 3)), z=span((1, 1), (4, 1), (8, 1)))
    ])  # fmt: skip
    assert [one["name"] for one in complete_tensorrt(config(input=[entry("x", [3])]), found)["input"]] == ["x"]


def test_scalar_has_a_reshape() -> None:
    done = complete_tensorrt(config(), engine(tensor("x", (8,)), output("y", (8,))))
    assert done["max_batch_size"] == 8
    assert done["input"] == [{**entry("x", [1], **FLAGS), "reshape": {"shape": []}}]
    partly = complete_tensorrt(config(input=[{"name": "x"}]), engine(tensor("x", (8,)), output("y", (8,))))
    assert partly["input"] == done["input"]


RESIZE = engine(
    tensor("x", (-1, 3)),
    tensor("size", (3,), "TYPE_INT32", is_shape=True),
    output("shape", (3,), "TYPE_INT64", is_shape=True),
    output("y", (-1, 3)),
    profiles=[Profile(
        {"x": span((1, 3), (4, 3), (8, 3)), "size": span((3,))}, {"size": span((1, 9, 9), (4, 99, 99), (6, 999, 999))}
    )],
)  # fmt: skip


def test_shape_tensors() -> None:
    done = complete_tensorrt(config(), RESIZE)
    assert done["max_batch_size"] == 6  # the first value of `size` is the batch
    assert done["input"][1] == entry("size", [2], "TYPE_INT32", is_shape_tensor=True, is_non_linear_format_io=False)
    assert done["output"][0] == entry("shape", [2], "TYPE_INT64", is_shape_tensor=True, is_non_linear_format_io=False)
    plain = complete_tensorrt(config(input=[entry("x", [-1, 3]), entry("size", [3], "TYPE_INT32")]), RESIZE)
    assert (plain["max_batch_size"], plain["input"][1]["is_shape_tensor"]) == (0, True)
    assert plain["output"][0]["dims"] == [3]


def test_wrong_marks() -> None:
    error = refused(config(input=[entry("x", [3], is_shape_tensor=True)]), batching())
    assert isinstance(error, InvalidArgument)
    assert error.message == "'x' is incorrectly specified as a shape tensor."
    error = refused(config(input=[entry("x", [3], is_non_linear_format_io=True)]), batching())
    assert isinstance(error, InvalidArgument)
    assert error.message == (
        "'x' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the model "
        "configuration."
    )


def test_format_that_is_not_linear() -> None:
    found = engine(
        tensor("x", (1, 3, 4, 4), format="HWC8", vectorized_dim=1, components=8),
        output("y", (1, 2)),
    )
    assert complete_tensorrt(config(), found)["input"][0]["is_non_linear_format_io"] is True
    marked = complete_tensorrt(config(input=[entry("x", [3, 4, 4], is_non_linear_format_io=False)]), found)
    assert marked["input"][0]["is_non_linear_format_io"] is True


def test_type_that_cannot_be_served() -> None:
    error = refused(config(), engine(tensor("x", (1, 3), "FP8"), output("y", (1, 2))))
    assert isinstance(error, Internal)
    assert error.message.startswith(
        "unsupported datatype TYPE_INVALID for input 'x' for model 'm'; the engine has it as FP8"
    )


def test_inputs_that_no_request_has_are_not_listed() -> None:
    names = ("x", "start", "state", "counts")
    found = engine(
        *(tensor(name, (-1, 1)) for name in names), output("y", (-1, 1)),
        profiles=[profile(**{name: span((1, 1), (4, 1), (8, 1)) for name in names})],
    )  # fmt: skip
    done = complete_tensorrt(
        config(
            sequence_batching={
                "control_input": [{"name": "start"}],
                "state": [{"input_name": "state", "output_name": "y"}],
            },
            batch_input=[{"target_name": ["counts"]}],
        ),
        found,
    )
    assert [one["name"] for one in done["input"]] == ["x"]
    assert [one["name"] for one in done["output"]] == ["y"]


def test_in_the_form_that_workers_receive() -> None:
    document = model_config_to_json(normalise(model_config_from_json({"backend": "tensorrt", **GPU}), "m"))
    done = model_config_from_json(complete_tensorrt(document, batching()))
    assert (done.max_batch_size, done.HasField("dynamic_batching"), len(done.input)) == (8, True, 1)


@st.composite
def engines(draw: st.DrawFn) -> EngineInfo:
    types = st.sampled_from(sorted(DATA_TYPES.values()))
    batch, has_batch = draw(st.integers(1, 8)), draw(st.booleans())
    shapes, tensors = {}, []
    for index in range(draw(st.integers(1, 3))):
        rest = tuple(draw(st.lists(st.sampled_from([-1, 1, 3]), min_size=0 if has_batch else 1, max_size=2)))
        top = tuple(5 if size == -1 else size for size in rest)
        name = f"x{index}"
        tensors.append(tensor(name, (-1, *rest) if has_batch else rest, draw(types)))
        low = tuple(1 if size == -1 else size for size in rest)
        shapes[name] = span((1, *low), (1, *low), (batch, *top)) if has_batch else span(low, low, top)
    rest = tuple(draw(st.lists(st.sampled_from([-1, 2]), min_size=1, max_size=2)))
    tensors.append(output("y", (-1, *rest) if has_batch else rest, draw(types)))
    return engine(*tensors, profiles=[Profile(shapes)])


@given(found=engines(), listed=st.booleans())
def test_a_completed_configuration_agrees_with_its_engine(found: EngineInfo, listed: bool) -> None:
    given = config(input=[{"name": each.name} for each in found.inputs]) if listed else config()
    done = complete_tensorrt(given, found)
    check_tensorrt(done, found, instance_profiles([], found, "m_0_0"), "m_0_0")
    assert complete_tensorrt(done, found) == done
