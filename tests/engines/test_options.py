"""The options of a build: as words, and as they come from a configuration."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from edge_serve.engines.options import EngineOptions, from_json, over, parse_options, parse_shapes, with_accelerator
from edge_serve.errors import InvalidArgument
from ota.decide.variant import is_build_option


def accelerated(**parameters: str) -> dict[str, Any]:
    accelerator = {"name": "tensorrt", "parameters": parameters}
    return {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}}


def test_options_are_read_and_pass_through_json() -> None:
    text = "--fp16 --min-shapes=a:b:1x3,c:2 --version-compatible --dla-core=1 --optimization-level 5 --workspace-mb=7 "
    text += "--no-tf32"
    found = parse_options(text, "a test")
    assert found == EngineOptions(("FP16",), ({"min": {"a:b": (1, 3), "c": (2,)}},), True, False, 1, 5, 7 << 20, False)
    assert from_json(json.loads(json.dumps(asdict(found)))) == found


def test_every_option_that_edge_ota_lets_through_is_known() -> None:
    words = [
        "--fp16",
        "--bf16",
        "--int8",
        "--best",
        "--no-tf32",
        *(f"--{side}-shapes=x:1x3x224x224" for side in ("min", "opt", "max")),
    ]
    assert all(map(is_build_option, words))
    found = parse_options(" ".join(words), "a manifest")
    assert (found.precisions, found.tf32) == (("BEST", "FP16", "BF16", "INT8"), False)


@pytest.mark.parametrize("text", ["x", "x:", "x:1x", "x:1x-1", ":1", "x:1,x:2", "x:4294967296x4"])
def test_shape_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        parse_shapes(text)


@pytest.mark.parametrize(
    "text", ["--fp8", "--fp1", "--optimization-level=6", "--dla-core=x", "stray", "--opt-shapes", "'"]
)
def test_bad_option_in_a_configuration_names_its_place(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^parameter P of model 'm'"):
        parse_options(text, "parameter P of model 'm'")


def test_accelerator_of_the_configuration_is_used_and_options_go_before_it() -> None:
    config = accelerated(precision_mode="FP16", max_workspace_size_bytes="1048576")
    assert with_accelerator(EngineOptions(), config) == EngineOptions(("FP16",), workspace_bytes=1 << 20)
    given = EngineOptions(("INT8",), workspace_bytes=2)
    assert with_accelerator(given, config) == given
    with pytest.raises(InvalidArgument, match="precision_mode is 'FP4', expected FP32, FP16"):
        with_accelerator(EngineOptions(), accelerated(precision_mode="FP4"))
    with pytest.raises(InvalidArgument, match="max_workspace_size_bytes is '1 GB', expected a number"):
        with_accelerator(EngineOptions(), accelerated(max_workspace_size_bytes="1 GB"))


def test_option_of_the_command_line_overrides_the_configuration() -> None:
    configured, given = (
        parse_options("--fp16 --optimization-level=1", "a"),
        parse_options("--optimization-level=2", "b"),
    )
    assert over(configured, given) == EngineOptions(("FP16",), level=2)
