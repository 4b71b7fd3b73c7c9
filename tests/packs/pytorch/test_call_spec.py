"""Names of the tensors of a model.pt2, from trees as torch 2.13 writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge_serve.errors import Internal
from packs.pytorch.call_spec import input_leaves, output_leaves, signature_of

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def tree(kind: str, *children: dict[str, Any], keys: tuple[str, ...] = ()) -> dict[str, Any]:
    context = json.dumps(list(keys)) if kind == "dict" else "null"
    return {"type": f"builtins.{kind}", "context": context, "children_spec": list(children)}


def text(root: dict[str, Any], version: int = 1) -> str:
    return json.dumps([version, root])


INPUTS = text(
    tree(
        "tuple",
        tree("tuple", LEAF, LEAF, tree("dict", LEAF, LEAF, keys=("option1", "option2"))),
        tree("dict", LEAF, keys=("scale",)),
    )
)
OUTPUTS = text(
    tree("dict", LEAF, LEAF, tree("tuple", LEAF, LEAF), tree("list", LEAF), keys=("AAA", "ZZZ", "BBB", "CCC"))
)
LEAVES = ["ARGS[0]", "ARGS[1]", "ARGS[2][option1]", "ARGS[2][option2]", "KWARGS[scale]"]
RESULTS = ["RESULT[AAA]", "RESULT[ZZZ]", "RESULT[BBB][0]", "RESULT[BBB][1]", "RESULT[CCC][0]"]


def config(inputs: list[str], outputs: list[str], data_type: str = "TYPE_INT8", **more: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "input": [{"name": name, "data_type": data_type, "dims": [1, 16]} for name in inputs],
        "output": [{"name": name, "data_type": data_type, "dims": [1, 16]} for name in outputs],
        **more,
    }


def test_names_follow_the_tree() -> None:
    assert input_leaves(INPUTS) == LEAVES
    assert output_leaves(OUTPUTS) == RESULTS
    assert output_leaves(text(LEAF)) == ["RESULT"]


def test_tensors_are_found_by_the_tree_and_by_number_in_any_order() -> None:
    numbered = [f"INPUT__{index}" for index in range(5)]
    for names in (LEAVES, numbered, [*LEAVES[3:], *numbered[:3]]):
        found = signature_of(config(names, ["RESULT[ZZZ]", "OUTPUT__0"]), LEAVES, RESULTS)
        assert sorted(found.inputs.values()) == [0, 1, 2, 3, 4]
        assert found.outputs == {"RESULT[ZZZ]": 1, "OUTPUT__0": 0}
    assert signature_of(config(numbered, ["OUTPUT__4"]), LEAVES, RESULTS).inputs["INPUT__3"] == 3


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (
            config(LEAVES[:4], RESULTS),
            '^Failed to load model "m" configuration expects 4 inputs, but model expects 5 in',
        ),
        (
            config([*LEAVES[:4], "x"], RESULTS),
            '^Input "x" for model instance "m" is not found in model input map. The ',
        ),
        (config(LEAVES, ["y"]), r'^Output "y" for model instance .*are RESULT\[AAA\].*, or OUTPUT__0, OUTPUT__1'),
        (config([*LEAVES[:4], "INPUT__0"], RESULTS), r'two inputs of model "m" name the same tensor ARGS\[0\]'),
        (config(LEAVES, RESULTS, "TYPE_STRING"), "unsupported datatype TYPE_STRING for input 'ARGS\\[0\\]'"),
        (config(LEAVES, RESULTS, "TYPE_UINT16"), "unsupported datatype TYPE_UINT16"),
    ],
)
def test_contradictions_are_refused(made: dict[str, Any], error: str) -> None:
    with pytest.raises(Internal, match=error):
        signature_of(made, LEAVES, RESULTS)


def test_sequences_name_their_tensors_the_same_way() -> None:
    """Triton's torch_aoti_sequence_bad_corrid and torch_aoti_sequence_bad_state do not load."""
    batching: dict[str, Any] = {
        "control_input": [
            {"name": "ARGS[2]", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_INT32"}]}
        ],
        "state": [{"input_name": "ARGS[1]", "output_name": "RESULT[1]", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    leaves, results = ["ARGS[0]", "ARGS[1]", "ARGS[2]"], ["RESULT[0]", "RESULT[1]"]
    made = config(["ARGS[0]"], ["RESULT[0]"], "TYPE_FP32", sequence_batching=batching)

    found = signature_of(made, leaves, results)
    assert (found.inputs, found.outputs) == (
        {"ARGS[0]": 0, "ARGS[2]": 2, "ARGS[1]": 1},
        {"RESULT[0]": 0, "RESULT[1]": 1},
    )

    batching["control_input"][0]["control"][0]["data_type"] = "TYPE_STRING"
    with pytest.raises(Internal, match=r"input 'ARGS\[2\]' type 'TYPE_STRING' is not supported by PyTorch."):
        signature_of(made, leaves, results)
    batching["control_input"][0]["control"][0]["data_type"] = "TYPE_INT32"
    batching["state"][0]["data_type"] = "TYPE_STRING"
    with pytest.raises(Internal, match=r"unsupported datatype TYPE_STRING for input state 'ARGS\[1\]'"):
        signature_of(made, leaves, results)


def test_other_containers_and_versions_are_refused() -> None:
    with pytest.raises(Internal, match=r"ARGS\[0\] of the model is of type my\.Data, expected a tensor"):
        input_leaves(text(tree("tuple", tree("tuple", {"type": "my.Data", "context": "", "children_spec": []}),
                               tree("dict"))))  # fmt: skip
    with pytest.raises(Internal, match="has version 2, expected 1"):
        output_leaves(text(LEAF, version=2))
    with pytest.raises(Internal, match="cannot be read"):
        output_leaves("nonsense")
