"""Profiles: from options, from a configuration, and where they contradict the model."""

from __future__ import annotations

import pytest

from edge_serve.engines.options import parse_options
from edge_serve.engines.profiles import BatchHints, NetworkInput, plan_profiles
from edge_serve.errors import InvalidArgument

IMAGE = NetworkInput("x", (-1, 3, -1, -1))
BATCHED = NetworkInput("x", (-1, 4))


def planned(one: NetworkInput, options: str = "", hints: BatchHints | None = None) -> list[dict[str, object]]:
    made = plan_profiles([one], parse_options(options, "a test").shapes, hints or BatchHints())
    return [dict(profile) for profile in made]


def test_configuration_gives_the_batch_from_one_to_its_largest() -> None:
    hints = BatchHints(8, (2, 4, 16), {"x": (4,)})
    assert planned(BATCHED, hints=hints) == [{"x": ((1, 4), (4, 4), (8, 4))}]
    assert planned(BATCHED, hints=BatchHints(8)) == [{"x": ((1, 4), (8, 4), (8, 4))}]


def test_dims_of_the_configuration_close_open_dimensions() -> None:
    hints = BatchHints(2, (), {"x": (3, 32, 64)})
    assert planned(IMAGE, hints=hints) == [{"x": ((1, 3, 32, 64), (2, 3, 32, 64), (2, 3, 32, 64))}]
    whole = BatchHints(0, (), {"x": (1, 3, 32, 64)})
    assert planned(IMAGE, hints=whole) == [{"x": ((1, 3, 32, 64),) * 3}]


def test_model_without_open_dimensions_needs_no_profile() -> None:
    assert planned(NetworkInput("x", (1, 4))) == []
    assert planned(NetworkInput("x", (1, 4)), "--opt-shapes=x:1x4") == []


def test_options_give_one_profile_each_and_one_side_stands_in_for_another() -> None:
    found = planned(BATCHED, "--min-shapes=x:1x4 --min-shapes=x:8x4 --max-shapes=x:8x4 --max-shapes=x:64x4")
    assert found == [{"x": ((1, 4), (8, 4), (8, 4))}, {"x": ((8, 4), (64, 4), (64, 4))}]
    assert planned(BATCHED, "--opt-shapes=x:2x4") == [{"x": ((2, 4),) * 3}]


def test_values_of_a_shape_tensor() -> None:
    sizes = NetworkInput("size", (2,), is_shape=True)
    found = planned(sizes, "--min-shapes=size:1x1 --opt-shapes=size:32x32 --max-shapes=size:64x64")
    assert found == [{"size": ((1, 1), (32, 32), (64, 64))}]


@pytest.mark.parametrize(
    ("one", "options", "hints", "text"),
    [
        (BATCHED, "--opt-shapes=y:1x4", None, r"--opt-shapes has a shape for 'y', and the model's inputs are x"),
        (BATCHED, "--opt-shapes=x:1x4x1", None, r"gives input 'x' \[1,4,1\], and the model has \[-1,4\]: expected 2"),
        (BATCHED, "--opt-shapes=x:1x5", None, r"expected 4 in place of 5"),
        (BATCHED, "--min-shapes=x:4x4 --max-shapes=x:2x4", None, r"expected none below the one before it"),
        (BATCHED, "--opt-shapes=x:1x4 --max-shapes=x:2x4 --max-shapes=x:4x4", None, "given 1 times and another one 2"),
        (BATCHED, "", None, r"as --min-shapes=x:1x4 --opt-shapes=x:8x4 --max-shapes=x:8x4; or write max_"),
        (IMAGE, "", BatchHints(8, (), {"x": (3, -1, -1)}), r"nothing says how large .* --min-shapes=x:1x3x1x1"),
        (NetworkInput("x", (1, 4)), "", BatchHints(8, (), {"x": (4,)}), r"batch is always 1, and .* max_batch_size: 8"),
        (BATCHED, "", BatchHints(8, (), {"x": (5,)}), r"\[-1,4\], and config.pbtxt makes it \[-1,5\]"),
        (NetworkInput("s", (2,), is_shape=True), "--opt-shapes=s:1x2x3", None, "expected its 2 values"),
        (NetworkInput("s", (2,), is_shape=True), "", BatchHints(8), r"give its values; such as --min-shapes=s:1x1 "),
    ],
)  # fmt: skip
def test_contradiction_is_named(one: NetworkInput, options: str, hints: BatchHints | None, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        planned(one, options, hints)
