"""Auto-completion from an ONNX model, and the check against it."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

from edge_serve.config.model.complete import FoundTensor, check_onnx, complete_onnx
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model.normalise import normalise
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.stages import merge_completed
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from tests.texts import without_advice

X = FoundTensor("X", "TYPE_FP32", (-1, 3))
Y = FoundTensor("Y", "TYPE_INT64", (-1,))
FIXED = FoundTensor("X", "TYPE_FP32", (1, 3))
SCALAR = FoundTensor("S", "TYPE_FP32", ())


def _config(text: str) -> dict[str, Any]:
    return model_config_to_json(parse_model_config('name: "m" ' + text))


def test_worker_side_imports_no_protobuf() -> None:
    script = "import sys, edge_serve.config.model.complete; sys.exit('google.protobuf' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], timeout=50, check=False).returncode == 0


def test_completes_everything() -> None:
    done = complete_onnx(_config(""), [X], [Y])

    assert done["max_batch_size"] == 4
    assert done["dynamic_batching"] == {}
    assert done["input"] == [{"name": "X", "data_type": "TYPE_FP32", "dims": [3]}]
    assert done["output"] == [{"name": "Y", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}]


def test_result_is_a_configuration_that_passes_all_checks() -> None:
    config = normalise(parse_model_config('backend: "onnxruntime"'), "m")
    done = merge_completed(config, complete_onnx(model_config_to_json(config), [X], [Y]))

    assert list(done.dynamic_batching.preferred_batch_size) == [4]
    assert list(done.input[0].dims) == [3]
    check_onnx(model_config_to_json(done), [X], [Y])


def test_argument_is_left_alone() -> None:
    config = _config("parameters { key: 'a' value { string_value: 'b' } }")
    before = copy.deepcopy(config)
    done = complete_onnx(config, [X], [Y])
    done["parameters"]["a"]["string_value"] = "c"

    assert config == before


@pytest.mark.parametrize(("default", "size", "batches"), [(4, 4, True), (1, 1, False), (0, 0, False), (16, 16, True)])
def test_default_batch_size(default: int, size: int, batches: bool) -> None:
    done = complete_onnx(_config(""), [X], [Y], default)

    assert done["max_batch_size"] == size
    assert ("dynamic_batching" in done) == batches


def test_fixed_first_dimension_is_no_batch() -> None:
    done = complete_onnx(_config(""), [FIXED], [Y])

    assert done["max_batch_size"] == 0
    assert "dynamic_batching" not in done
    assert done["input"][0]["dims"] == [1, 3]
    assert done["output"][0]["dims"] == [-1]


def test_scalar_is_no_batch() -> None:
    done = complete_onnx(_config(""), [X], [SCALAR])

    assert done["max_batch_size"] == 0
    assert done["output"][0] == {"name": "S", "data_type": "TYPE_FP32", "dims": [1]}


def test_given_batch_size_stays() -> None:
    assert complete_onnx(_config("max_batch_size: 7"), [X], [Y])["max_batch_size"] == 7


def test_other_schedulers_stay() -> None:
    done = complete_onnx(_config("max_batch_size: 7 sequence_batching {}"), [X], [Y])

    assert "dynamic_batching" not in done


def test_batching_that_the_model_cannot_do() -> None:
    with pytest.raises(InvalidArgument) as caught:
        complete_onnx(_config("max_batch_size: 7"), [FIXED], [Y])

    assert caught.value.message.startswith(
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_complete_configuration_is_left_as_it_is() -> None:
    config = _config(
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] } output { name: "Y" data_type: TYPE_INT64 dims: -1 }'
    )

    assert complete_onnx(config, [X], [Y]) == config


def test_one_side_is_completed() -> None:
    config = _config('input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }')
    done = complete_onnx(config, [X], [Y])

    assert done["max_batch_size"] == 4
    assert done["input"] == config["input"]
    assert done["output"][0]["name"] == "Y"


def test_a_side_written_with_its_batch_dimension_turns_batching_off() -> None:
    config = _config('input { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] }')
    done = complete_onnx(config, [X], [Y])

    assert done["max_batch_size"] == 0
    assert done["output"][0]["dims"] == [-1]
    check_onnx(model_config_to_json(model_config_from_json(done)), [X], [Y])


def test_type_that_cannot_be_served() -> None:
    with pytest.raises(Internal, match="unsupported datatype for input 'Z' for model 'm'"):
        complete_onnx(_config(""), [FoundTensor("Z", "", (1,))], [Y])


def _io(inputs: str, outputs: str = 'name: "Y" data_type: TYPE_INT64 dims: [ -1 ]', more: str = "") -> dict[str, Any]:
    return _config(f"input {{ {inputs} }} output {{ {outputs} }} {more}")


_GOOD = 'name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ]'


@pytest.mark.parametrize(
    "config",
    [
        _io(_GOOD),
        _io('name: "X" data_type: TYPE_FP32 dims: [ 5, 3 ]'),
        _io('name: "X" data_type: TYPE_FP32 dims: [ 15 ] reshape { shape: [ 5, 3 ] }'),
        _io(
            'name: "X" data_type: TYPE_FP32 dims: [ 3 ]',
            'name: "Y" data_type: TYPE_INT64 dims: [ 1 ] reshape { }',
            "max_batch_size: 8",
        ),
    ],
)
def test_agreement(config: dict[str, Any]) -> None:
    check_onnx(config, [X], [Y])


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        (
            _io('name: "Q" data_type: TYPE_FP32 dims: [ 1 ]'),
            InvalidArgument,
            "unexpected inference input 'Q', allowed inputs are: X",
        ),
        (
            _io(_GOOD, 'name: "Q" data_type: TYPE_FP32 dims: [ 1 ]'),
            InvalidArgument,
            "unexpected inference output 'Q', allowed outputs are: Y",
        ),
        (
            _io(_GOOD, more=f"input {{ {_GOOD} }}"),
            InvalidArgument,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            _io('name: "X" data_type: TYPE_STRING dims: [ -1, 3 ]'),
            InvalidArgument,
            "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'X', model provides "
            "TYPE_FP32",
        ),
        (
            _io('name: "X" data_type: TYPE_FP32 dims: [ 3 ]'),
            InvalidArgument,
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 1 "
            "dimensions (shape [3])",
        ),
        (
            _io('name: "X" data_type: TYPE_FP32 dims: [ 4 ]', more="max_batch_size: 2"),
            InvalidArgument,
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 2 "
            "dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
            "making complete shape [-1,4])",
        ),
        (
            _io(_GOOD, 'name: "Y" data_type: TYPE_INT64 dims: [ 4 ]'),
            InvalidArgument,
            "model 'm', tensor 'Y': the model expects 1 dimensions (shape [-1]) but the model configuration specifies "
            "1 "
            "dimensions (shape [4])",
        ),
        (
            _io(_GOOD + " allow_ragged_batch: true"),
            InvalidArgument,
            "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input "
            "'X', "
            "model provides [-1,3]",
        ),
        (
            _io('name: "X" data_type: TYPE_FP32 dims: [ 3 ] optional: true', more="max_batch_size: 2"),
            InvalidArgument,
            "unable to load model 'm', configuration expects 0 inputs, model provides 1",
        ),
    ],
)
def test_contradiction(config: dict[str, Any], error: type[EdgeServeError], said: str) -> None:
    with pytest.raises(error) as caught:
        check_onnx(config, [X], [Y])

    assert without_advice(caught.value.message, said) == said


def test_batching_needs_a_variable_first_dimension() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_onnx(_io('name: "X" data_type: TYPE_FP32 dims: [ 3 ]', more="max_batch_size: 2"), [FIXED], [Y])

    said = (
        "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is [1,3]"
    )
    assert without_advice(caught.value.message, said) == said


def test_scalars_are_ones() -> None:
    scalar = 'name: "S" data_type: TYPE_FP32 dims: [ %d ]'
    check_onnx(_io(_GOOD, scalar % 1), [X], [SCALAR])

    with pytest.raises(InvalidArgument, match=r"scalar tensor 'S', should only provide 1 .* provided: \[2\]\."):
        check_onnx(_io(_GOOD, scalar % 2), [X], [SCALAR])


def test_a_scalar_has_no_rows_to_batch() -> None:
    """The requests of a batch would have to share its value."""
    given = 'name: "X" data_type: TYPE_FP32 dims: [ 3 ]'
    more = 'max_batch_size: 2 input { name: "S" data_type: TYPE_FP32 dims: [ 1 ] }'
    with pytest.raises(
        InvalidArgument, match=r"tensor 'S': for the model to support .*; write max_batch_size: 0 and d"
    ):
        check_onnx(_io(given, more=more), [X, SCALAR], [Y])


def test_strings_have_triton_s_wire_name_in_the_message() -> None:
    with pytest.raises(InvalidArgument, match="expects datatype TYPE_FP32 for input 'X', model provides TYPE_BYTES"):
        check_onnx(_io(_GOOD), [FoundTensor("X", "TYPE_STRING", (-1, 3))], [Y])


def test_optional_inputs_are_initialisers_that_may_be_replaced() -> None:
    config = _io(_GOOD, more='input { name: "W" data_type: TYPE_FP32 dims: [ 2 ] optional: true }')
    weight = FoundTensor("W", "TYPE_FP32", (2,))

    check_onnx(config, [X], [Y], [weight])
    with pytest.raises(InvalidArgument, match="unexpected inference input 'W', allowed inputs are: X"):
        check_onnx(config, [X], [Y])


def test_controls_states_and_batch_inputs_count_as_inputs() -> None:
    more = """
    batch_input { target_name: "B" data_type: TYPE_FP32 source_input: "X" }
    sequence_batching { control_input { name: "C" } state { input_name: "S" } }
    """
    found = [X, *(FoundTensor(name, "TYPE_FP32", (-1,)) for name in "BCS")]

    check_onnx(_io(_GOOD, more=more), found, [Y])
    with pytest.raises(InvalidArgument, match="configuration expects 4 inputs, model provides 1"):
        check_onnx(_io(_GOOD, more=more), [X], [Y])


def test_scattered_output_has_the_shape_of_each_request() -> None:
    output = 'name: "Y" data_type: TYPE_INT64 dims: [ 7, 7 ]'
    check_onnx(_io(_GOOD, output, 'batch_output { target_name: "Y" source_input: "X" }'), [X], [Y])

    with pytest.raises(InvalidArgument):
        check_onnx(_io(_GOOD, output), [X], [Y])


@pytest.mark.parametrize(
    ("dims", "batches", "found", "advice"),
    [
        ("1", True, (-1,), "write reshape { shape: [ ] } for it, because the model's tensor has no dimension but the "
                           "batch"),
        ("7", True, (-1,), "write dims: [ 1 ] and reshape { shape: [ ] } for it"),
        ("-1, 4", True, (-1, 4), "dims must not have the batch dimension: write dims: [ 4 ]"),
        ("8, 4", True, (-1, 4), "dims must not have the batch dimension: write dims: [ 4 ]"),
        ("4, 4, 3", True, (-1, 3, 4, 4), "the sizes stand in another order: write dims: [ 3, 4, 4 ], the order that "
                                         "the model expects"),
        ("12", True, (-1, 3, 4), "write reshape { shape: [ 3, 4 ] } for it, or dims: [ 3, 4 ]"),
        ("1, 4", False, (4,), "write reshape { shape: [ 4 ] } for it, or dims: [ 4 ]"),
        ("5", False, (4,), "write dims: [ 4 ]"),
        ("5, 2", False, (-1, 2, 2), "write dims: [ -1, 2, 2 ]"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_has_the_line_that_would(
    dims: str, batches: bool, found: tuple[int, ...], advice: str
) -> None:
    tensor = f'name: "X" data_type: TYPE_FP32 dims: [ {dims} ]'
    config = _io(tensor, more="max_batch_size: 2" if batches else "")
    with pytest.raises(InvalidArgument) as caught:
        check_onnx(config, [FoundTensor("X", "TYPE_FP32", found)], [Y])
    assert caught.value.message.endswith(f"; {advice}")


def test_batching_does_not_depend_on_outputs_that_are_not_served() -> None:
    maps = FoundTensor("M", "", (), "seq(map(int64,tensor(float)))")
    listed = model_config_to_json(parse_model_config('output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }'))
    batched = FoundTensor("Y", "TYPE_FP32", (-1, 3))
    assert complete_onnx(listed, [X], [batched, maps])["max_batch_size"] == 4
    with pytest.raises(Internal, match=r"it is a sequence of maps .scikit-learn's ZipMap.: export with options="):
        complete_onnx({"name": "m"}, [X], [batched, maps])
