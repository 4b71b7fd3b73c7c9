"""The profiles of an instance and the choice for a batch. Texts: tensorrt_backend src/instance_state.cc."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.backends.tensorrt.engine import Profile, Range
from edge_serve.backends.tensorrt.profiles import (
    Choice,
    choose,
    distance,
    fault,
    group_profiles,
    instance_profiles,
    largest_shape,
    profile_index,
)
from edge_serve.errors import Internal, InvalidArgument
from tests.backends.tensorrt.fake_engine import engine, profile, span, tensor

SMALL, WIDE, FULL = (
    profile(x=span((1, 8), (1, 64), (4, 128))),
    profile(x=span((1, 64), (2, 256), (4, 512))),
    profile(x=span((1, 8), (16, 64), (32, 128))),
)
THREE = engine(tensor("x", (-1, -1)), profiles=[SMALL, WIDE, FULL])
ALL = instance_profiles(["0", "1", "2"], THREE, "m_0_0")


def test_default_is_the_first_profile() -> None:
    assert instance_profiles([], THREE, "m_0_0") == (Choice("default", 0, SMALL),)


def test_one_choice_for_each_profile_in_the_order_of_their_indices() -> None:
    assert instance_profiles(["2", "0"], THREE, "m_0_0") == (Choice("0", 0, SMALL), Choice("2", 2, FULL))
    assert instance_profiles(["1", "01"], THREE, "m_0_0") == (Choice("1", 1, WIDE),)


def test_profile_that_the_engine_lacks() -> None:
    with pytest.raises(InvalidArgument) as failed:
        instance_profiles(["0", "3"], THREE, "m_0_0")
    assert failed.value.message == (
        "Can not set the specified optimization profile 3[3] for m_0_0. Expected optimization profile index range 0-2"
    )


def test_names_of_profiles_are_indices() -> None:
    assert profile_index("7") == 7
    with pytest.raises(InvalidArgument, match=r"^profile name must not be empty$"):
        profile_index("")
    with pytest.raises(InvalidArgument, match=r"^unable to parse 'large': expected the index of a profile"):
        profile_index("large")


def test_profiles_of_all_groups() -> None:
    config = {"instance_group": [{"profile": ["1"]}, {"kind": "KIND_GPU"}, {"profile": ["0", "1"]}]}
    assert group_profiles(config) == ["1", "0", "1"]
    assert group_profiles({}) == []


@pytest.mark.parametrize(
    ("shape", "index"),
    [((1, 64), 0), ((1, 8), 0), ((4, 300), 1), ((1, 128), 0), ((12, 64), 2), ((4, 120), 0), ((2, 128), 0)],
)
def test_nearest_profile(shape: tuple[int, int], index: int) -> None:
    assert choose(ALL, {"x": shape}, {}, "m_0_0").index == index


def test_dimensions_are_compared_with_themselves() -> None:
    # Triton compares 200 with the batch and the batch with itself, and takes the first
    near = instance_profiles(
        ["0", "1"],
        engine(
            tensor("x", (-1, -1)),
            profiles=[profile(x=span((1, 1), (4, 10), (8, 400))), profile(x=span((1, 1), (4, 200), (8, 400)))],
        ),
        "m_0_0",
    )
    assert choose(near, {"x": (4, 200)}, {}, "m_0_0").index == 1


def test_first_of_equally_near_profiles() -> None:
    equal = (Choice("0", 0, SMALL), Choice("5", 5, SMALL))
    assert choose(equal, {"x": (1, 64)}, {}, "m_0_0").index == 0


def test_no_profile_fits() -> None:
    with pytest.raises(InvalidArgument) as failed:
        choose(ALL[:2], {"x": (40, 64)}, {}, "m_0_0")
    assert failed.value.message == (
        "failed to find any Optimization Profile among [ 0[0] 1[1]] to support the requested dimensions (or shape "
        "values): the batch for m_0_0 has x [40,64]; 0[0] takes x [1,8] to [4,128]; 1[1] takes x [1,64] to [4,512]"
    )


def test_the_only_profile_does_not_fit() -> None:
    with pytest.raises(Internal) as failed:
        choose(ALL[:1], {"x": (4, 300)}, {}, "m_0_0")
    assert failed.value.message == (
        "request specifies invalid shape for input 'x' for m_0_0. Error details: model expected the shape of dimension "
        "1 to be between 8 and 128 but received 300; profile 0[0] takes x [1,8] to [4,128]"
    )
    with pytest.raises(Internal, match="Error details: model expected 2 dimensions but received 3 dimensions; profile"):
        choose(ALL[:1], {"x": (4, 30, 1)}, {}, "m_0_0")


def test_inputs_that_the_profile_does_not_know_pass() -> None:
    assert fault(SMALL, {"other": (1,)}, {}, "m_0_0") is None
    assert distance(SMALL, {"other": (1,)}, {"more": (1,)}) == 0


IMAGE = {"x": span((1, 4), (4, 4), (8, 4)), "size": span((3,))}
RESIZE = Profile(IMAGE, {"size": span((1, 16, 16), (4, 64, 64), (8, 128, 128))})
HUGE = Profile(IMAGE, {"size": span((1, 99, 99), (4, 512, 512), (8, 999, 999))})


def test_values_of_shape_tensors_decide_too() -> None:
    both = (Choice("0", 0, RESIZE), Choice("1", 1, HUGE))
    for values, index in (((4, 64, 64), 0), ((4, 128, 100), 0), ((4, 300, 300), 1)):
        assert choose(both, {"x": (4, 4)}, {"size": values}, "m_0_0").index == index
    with pytest.raises(
        InvalidArgument, match=r"the batch for m_0_0 has x \[4,4\], size \[4,1,1\]; 0\[0\] takes x \[1,4"
    ):
        choose(both, {"x": (4, 4)}, {"size": (4, 1, 1)}, "m_0_0")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"size": (4, 64)}, "mismatch between the number of shape values. Expecting 3. Got 2"),
        (
            {"size": (4, 64, 200)},
            "The shape value at index 2 is expected to be in range from 16 to 128, Got: 200; profile 0[0] takes x "
            "[1,4] to [8,4], values of size [1,16,16] to [8,128,128]",
        ),
        ({"size": (9, 64, 64)}, "The shape value at index 0 is expected to be in range from 1 to 8, Got: 9"),
        ({}, "unable to find shape values for shape input 'size' in request for m_0_0"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, tuple[int, ...]], text: str) -> None:
    with pytest.raises(InvalidArgument) as failed:
        choose((Choice("0", 0, RESIZE),), {"x": (4, 4)}, values, "m_0_0")
    assert failed.value.message.startswith(text)


def test_values_that_8_6_does_not_tell_are_left_to_it() -> None:
    told = profile({"size": span((1,), (4,), (8,))}, size=span((3,)))
    assert fault(told, {}, {"size": (4, 9999, 1)}, "m_0_0") is None
    assert fault(told, {}, {"size": (9, 1, 1)}, "m_0_0") is not None


def test_scalar_shape_tensor() -> None:
    one = profile({"n": span((2,), (4,), (8,))}, n=span(()))
    assert fault(one, {}, {"n": (3,)}, "m_0_0") is None
    assert fault(one, {}, {"n": (1,)}, "m_0_0") is not None


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "shape"),
    [
        ((8, -1), 8, (4, 128)), ((2, -1), 2, (2, 128)), ((8, 32), 8, (4, 32)), ((-1, 32), 8, (4, 32)),
        ((4, 128), 0, (4, 128)), ((-1, -1), 0, (4, 128)),
    ],
)  # fmt: skip
def test_memory_holds_the_largest_shape(dims: tuple[int, ...], max_batch_size: int, shape: tuple[int, ...]) -> None:
    assert largest_shape(SMALL.shapes["x"], dims, max_batch_size, "x", "m") == shape


def test_shape_in_the_configuration_outside_of_the_profile() -> None:
    with pytest.raises(InvalidArgument) as failed:
        largest_shape(SMALL.shapes["x"], (8, 300), 8, "x", "m")
    assert failed.value.message == (
        "model configuration specified invalid shape for input 'x' for model m. Error details: model expected the "
        "shape of dimension 1 to be between 8 and 128 but received 300; the profile takes [1,8] to [4,128]"
    )


@st.composite
def ranges(draw: st.DrawFn, rank: int) -> Range:
    bounds = [sorted(draw(st.tuples(*[st.integers(1, 12)] * 3))) for _ in range(rank)]
    return Range(*(tuple(bound[at] for bound in bounds) for at in range(3)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Choice], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    ranks = {"x": draw(st.integers(1, 3)), "y": draw(st.integers(1, 2))}
    has_values = draw(st.booleans())
    choices = []
    for index in range(draw(st.integers(1, 4))):
        shapes = {name: draw(ranges(rank)) for name, rank in ranks.items()}
        values = {"size": draw(ranges(2))} if has_values else {}
        shapes |= {"size": span((2,))} if has_values else {}
        choices.append(Choice(str(index), index, Profile(shapes, values)))
    sizes = st.integers(1, 12)
    batch = {name: tuple(draw(sizes) for _ in range(rank)) for name, rank in ranks.items()}
    return choices, batch, {"size": (draw(sizes), draw(sizes))} if has_values else {}


@given(case=cases())
def test_the_choice_fits_and_none_that_fits_is_nearer(
    case: tuple[list[Choice], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]],
) -> None:
    choices, shapes, values = case
    found = {**shapes, **values}

    def plainly(choice: Choice) -> bool:
        spans = {**choice.profile.shapes, **choice.profile.values}
        return all(
            low <= size <= high
            for name, sizes in found.items()
            for low, size, high in zip(spans[name].min, sizes, spans[name].max, strict=True)
        )

    fitting = [choice for choice in choices if plainly(choice)]
    if not fitting:
        with pytest.raises((Internal, InvalidArgument), match="takes"):
            choose(choices, shapes, values, "m_0_0")
        return
    chosen = choose(choices, shapes, values, "m_0_0")
    far = [distance(choice.profile, shapes, values) for choice in fitting]
    assert chosen in fitting
    assert distance(chosen.profile, shapes, values) == min(far)
    assert chosen == fitting[far.index(min(far))]


@given(span=ranges(3), max_batch_size=st.integers(0, 12), data=st.data())
def test_the_largest_shape_is_one_of_the_profile(span: Range, max_batch_size: int, data: st.DataObject) -> None:
    dims = tuple(data.draw(st.sampled_from([-1, low, high])) for low, high in zip(span.min, span.max, strict=True))
    full = (max_batch_size, *dims[1:]) if max_batch_size else dims
    shape = largest_shape(span, full, max_batch_size, "x", "m")
    assert all(size <= high for size, high in zip(shape, span.max, strict=True))
    assert all(size in (have, high) for size, have, high in zip(shape[1:], dims[1:], span.max[1:], strict=True))
