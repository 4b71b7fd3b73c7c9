"""Names of inputs and outputs of TorchScript models, as in Triton's L0_libtorch_io_names and L0_libtorch_io_types."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from packs.pytorch.names import Argument, place_in, signature_of

TWO = (Argument("INPUT0", "TensorType", "Tensor"), Argument("INPUT1", "TensorType", "Tensor"))


def config(
    inputs: tuple[str, ...] = ("INPUT0", "INPUT1"), outputs: tuple[str, ...] = ("OUTPUT__0", "OUTPUT__1"), **more: Any
) -> dict[str, Any]:
    def entries(names: tuple[str, ...]) -> list[dict[str, Any]]:
        return [{"name": name, "data_type": "TYPE_FP32", "dims": [16]} for name in names]

    return {"name": "m", "max_batch_size": 8, "input": entries(inputs), "output": entries(outputs), **more}


def sequence(controls: dict[str, str], states: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """Return `sequence_batching` with controls (name -> type of a correlation ID, or "") and states."""
    made = [
        {"name": name, "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": kind} if kind else
                                   {"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}
        for name, kind in controls.items()
    ]  # fmt: skip
    kept = [{"input_name": a, "output_name": b, "data_type": "TYPE_FP32", "dims": [16]} for a, b in states]
    return {"control_input": made, "state": kept}


@pytest.mark.parametrize(
    ("inputs", "outputs", "places"),
    [
        (("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1"), (0, 1, 0, 1)),
        (("INPUT0", "INPUT1"), ("OUTPUT__0", "OUTPUT__1"), (0, 1, 0, 1)),
        (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), (0, 1, 0, 1)),
        (("INPUTA", "INPUTB"), ("OUTPUTA", "OUTPUTB"), (0, 1, 0, 1)),
        (("INPUTA", "INPUT__1"), ("OUTPUTA", "OUTPUT__1"), (0, 1, 0, 1)),
        (("INPUT0", "INPUTB"), ("OUTPUTA", "OUTPUT__1"), (0, 1, 0, 1)),
        (("INPUT0", "INPUT__1"), ("OUTPUT0", "OUTPUT__1"), (0, 1, 0, 1)),
        (("INPUT1", "INPUT0"), ("OUT__1", "OUT__0"), (1, 0, 1, 0)),
    ],
)
def test_the_names_of_tritons_test(inputs: tuple[str, ...], outputs: tuple[str, ...], places: tuple[int, ...]) -> None:
    found = signature_of(config(inputs, outputs), TWO)

    assert (*found.inputs.values(), *found.outputs.values()) == places
    assert (*found.inputs, *found.outputs) == (*inputs, *outputs)
    assert (found.count, found.keyed) == (2, False)


@pytest.mark.parametrize(
    ("name", "place"), [("INPUT__0", 0), ("x__12", 12), ("a__b", None), ("a__1__2", None), ("a_1", None), ("a__", 0)]
)
def test_the_place_is_the_number_after_the_first_pair_of_underscores(name: str, place: int | None) -> None:
    assert place_in(name) == place


def test_one_dictionary_gets_all_inputs_by_name() -> None:
    found = signature_of(config(("left", "right")), [Argument("given", "DictType", "Dict[str, Tensor]")])

    assert found.keyed
    assert found.inputs == {"left": 0, "right": 1}


def test_controls_and_states_have_places_of_their_own() -> None:
    arguments = [Argument(name, "TensorType", "Tensor") for name in ("data", "kept", "start", "ready")]
    batching = sequence({"START__2": "", "READY__3": ""}, (("STATE__1", "STATE_OUT__1"),))

    found = signature_of(config(("INPUT__0",), ("OUTPUT__0",), sequence_batching=batching), arguments)

    assert found.inputs == {"INPUT__0": 0, "START__2": 2, "READY__3": 3, "STATE__1": 1}
    assert found.outputs == {"OUTPUT__0": 0, "STATE_OUT__1": 1}


def refused(expected: type[EdgeServeError], text: str, made: dict[str, Any], *arguments: Argument) -> None:
    with pytest.raises(expected, match=text):
        signature_of(made, arguments or TWO)


def test_contradictions_have_tritons_texts() -> None:
    refused(
        InvalidArgument,
        r"^unable to load model 'm', configuration expects 1 inputs, model provides 2; the arguments of forward\(\) "
        "are INPUT0, INPUT1, config.pbtxt has INPUT__0",
        config(("INPUT__0",)),
    )
    refused(
        InvalidArgument,
        r"^unable to load model 'm', configuration expects 0 inputs, model provides 2; the arguments of forward\(\) "
        "are INPUT0, INPUT1, config.pbtxt has none",
        {**config(), "input": []},
    )
    refused(
        Internal,
        "^model configuration must contain at least one input, none were specified.",
        {**config(), "input": []}, Argument("given", "DictType", "Dict[str, Tensor]"),
    )  # fmt: skip
    refused(Internal, "must contain at least one output, none were", {**config(), "output": []})
    refused(
        Internal,
        r"An input of type 'int' was detected in the model. Only a single input of type Dict\(str, Tensor\) or ",
        config(), TWO[0], Argument("size", "IntType", "int"),
    )  # fmt: skip
    refused(
        Internal,
        "^Multiple inputs of kind DictType were detected",
        config(), TWO[0], Argument("more", "DictType", "Dict[str, Tensor]"),
    )  # fmt: skip
    refused(
        InvalidArgument,
        r"^input 'INPUT__2' refers to argument 2 of forward\(\), which has 2, counted from 0: INPUT0, INPUT1$",
        config(("INPUT__0", "INPUT__2")),
    )
    refused(InvalidArgument, "^inputs 'A__1' and 'B__1' both refer to argument 1 of", config(("A__1", "B__1")))


def test_an_input_that_the_model_needs_is_not_optional() -> None:
    made = config()
    made["input"][1]["optional"] = True
    refused(InvalidArgument, "^input 'INPUT1' is optional in config.pbtxt, and the model always needs it", made)
    made["input"][0]["optional"] = True
    made["max_batch_size"] = 2
    keyed = Argument("given", "DictType", "Dict[str, Tensor]")
    refused(InvalidArgument, "^all inputs are optional .*: with max_batch_size, one must tell the rows", made, keyed)


def test_types_that_torch_lacks_have_tritons_texts() -> None:
    made = config()
    made["input"][0]["data_type"] = "TYPE_UINT32"
    refused(Internal, "^unsupported datatype TYPE_UINT32 for input 'INPUT0' for model 'm'", made)
    made = config()
    made["output"][0]["data_type"] = "TYPE_UINT64"
    refused(Internal, "^unsupported datatype TYPE_UINT64 for output 'OUTPUT__0' for model 'm'", made)
    refused(
        Internal,
        "^input 'CORRID__2' type 'TYPE_UINT32' is not supported by PyTorch.",
        config(sequence_batching=sequence({"CORRID__2": "TYPE_UINT32"})),
    )
    made = config()
    made["input"][0].update(data_type="TYPE_STRING")
    refused(Internal, "^Triton only supports 1 dimensional List of String as input for 'INPUT0' for model 'm'", made)


def test_strings_without_a_batch_dimension_have_one() -> None:
    made = {**config(), "max_batch_size": 0}
    made["input"][0].update(data_type="TYPE_STRING", dims=[-1])
    made["output"][0].update(data_type="TYPE_STRING", dims=[1], reshape={"shape": [1]})

    assert signature_of(made, TWO).inputs["INPUT0"] == 0


def test_names_of_sequences_must_have_numbers() -> None:
    refused(
        Internal,
        "^input 'START' does not follow <name>__<index> naming convention.$",
        config(sequence_batching=sequence({"START": ""})),
    )
    refused(
        InvalidArgument,
        "^PyTorch model 'm' is using sequence batching with state but state 'kept' does not follow the <name>__<",
        config(("INPUT__0",), sequence_batching=sequence({}, (("kept", "OUTPUT__1"),))),
    )
