"""`generate` bodies into requests and responses into bodies; texts are those of the transcript `generate`."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, Unparsable
from edge_serve.messages.infer import InferRequest, InferResponse, Parameter
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Shape, from_array, join_bytes, split_bytes
from edge_serve.protocol.v2 import generate

LARGE = 1 << 20
SPECS = (
    TensorSpec("text", DataType.BYTES, (1,), optional=True),
    TensorSpec("number", DataType.INT32, (-1,), optional=True),
    TensorSpec("pair", DataType.FP32, (-1, 2), optional=True),
    TensorSpec("flag", DataType.BOOL, (1,), optional=True),
)
SIGNATURE = Signature("m", "1", "python", 0, {spec.name: spec for spec in SPECS}, {}, required=1)
BATCHED = Signature("b", "1", "python", 8, {spec.name: spec for spec in SPECS}, {}, required=1)


def read(signature: Signature = SIGNATURE, limit: int = LARGE, /, **members: Any) -> InferRequest:
    return generate.read(json.dumps(members).encode(), signature, "", limit)


def refusal(text: bytes, limit: int = LARGE, signature: Signature = SIGNATURE) -> EdgeServeError:
    with pytest.raises(EdgeServeError) as caught:
        generate.read(text, signature, "", limit)
    return caught.value


# ---- requests -----------------------------------------------------------------------------------------------------


def test_members_named_like_inputs_are_tensors_and_the_rest_parameters() -> None:
    request = read(text="hé", number=[1, -2], temperature=0.5, stream=True, seed=7, stop="\n")

    assert {tensor.name: (tensor.datatype, tensor.shape) for tensor in request.inputs} == {
        "text": (DataType.BYTES, (1,)),
        "number": (DataType.INT32, (2,)),
    }
    assert split_bytes(request.inputs[0].data) == ["hé".encode()]
    assert bytes(request.inputs[1].data) == struct.pack("<2i", 1, -2)
    assert request.parameters == {"temperature": 0.5, "stream": True, "seed": 7, "stop": "\n"}
    assert [type(value) for value in request.parameters.values()] == [float, bool, int, str]


def test_the_request_is_validated_and_knows_its_model() -> None:
    request = generate.read(b'{"number":1}', SIGNATURE, "07", LARGE)

    assert (request.model_name, request.model_version, request.validated) == ("m", "07", SIGNATURE)


def test_the_id_is_the_requests_and_a_parameter_too() -> None:
    request = read(number=1, id="r7")

    assert (request.id, request.parameters) == ("r7", {"id": "r7"})


def test_words_of_infer_mean_nothing_here() -> None:
    request = read(number=1, sequence_id=5, sequence_start=True, priority=3, timeout=9)

    assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == (0, 0, 0, 0)
    assert request.parameters == {"sequence_id": 5, "sequence_start": True, "priority": 3, "timeout": 9}


def test_the_members_of_parameters_are_taken_like_those_of_the_whole() -> None:
    request = read(parameters={"number": [4], "top_k": 2}, top_p=1.0)

    assert [tensor.name for tensor in request.inputs] == ["number"]
    assert request.parameters == {"top_k": 2, "top_p": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "shape"),
    [
        ("number", 5, (1,)),
        ("number", [5], (1,)),
        ("number", [], (0,)),
        ("number", [1, 2, 3], (3,)),
        ("pair", [1, 2], (1, 2)),
        ("pair", [1, 2, 3, 4.5], (2, 2)),
        ("flag", True, (1,)),
        ("text", [""], (1,)),
    ],
)
def test_shapes_follow_from_the_number_of_values(name: str, value: Any, shape: Shape) -> None:
    (tensor,) = read(**{name: value}).inputs

    assert tensor.shape == shape


def test_a_batch_dimension_is_one_more_that_varies() -> None:
    (tensor,) = read(BATCHED, number=[1, 2, 3]).inputs

    assert tensor.shape == (1, 3)


@pytest.mark.parametrize(
    ("count", "dims", "shape"),
    [
        (6, (-1, 2, -1), (1, 2, 3)),
        (6, (-1, 3), (2, 3)),
        (1, (), ()),
        (6, (2, 3), (2, 3)),
        (0, (-1, 3), (0, 3)),
        (5, (-1, 3), None),
        (5, (2, 3), None),
        (0, (-1, 0), None),
        (2, (), None),
    ],
)
def test_the_innermost_variable_dimension_takes_what_the_fixed_ones_leave(
    count: int, dims: Shape, shape: Shape | None
) -> None:
    if shape is not None:
        assert generate.deduce_shape(count, dims, "x") == shape
        return
    with pytest.raises(InvalidArgument) as caught:
        generate.deduce_shape(count, dims, "x")
    assert caught.value.message == "The schema can not convert input 'x' to tensor with proper shape"


def test_integers_beyond_64_bits_become_doubles() -> None:
    text = b'{"number":1,"low":-9223372036854775808,"high":9223372036854775807,"more":9223372036854775808}'

    parameters = generate.read(text, SIGNATURE, "", LARGE).parameters

    assert parameters == {"low": -(2**63), "high": 2**63 - 1, "more": float(2**63)}
    assert type(parameters["more"]) is float


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", Unparsable, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", Unparsable, "attempt to get members for non-object"),
        (b'"text"', Unparsable, "attempt to get members for non-object"),
        (b'{"text":5}', Unparsable, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (b'{"text":null}', Unparsable, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (
            b'{"number":1.5}',
            Unparsable,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (b'{"flag":1}', Unparsable, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (
            b'{"text":["a","b"]}',
            InvalidArgument,
            "The schema can not convert input 'text' to tensor with proper shape",
        ),
        (b'{"flag":[]}', InvalidArgument, "The schema can not convert input 'flag' to tensor with proper shape"),
        (b'{"number":1,"id":5}', Unparsable, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            b'{"number":1,"parameters":5}',
            Unparsable,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            b'{"number":1,"x":{"y":1}}',
            InvalidArgument,
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            b'{"number":1,"parameters":{"x":[1]}}',
            InvalidArgument,
            "Converting keyword: 'parameters': parameter 'x' has invalid type. It should be either 'int', 'bool', or "
            "'string'.",
        ),
        (
            b'{"number":1,"number":2}',
            InvalidArgument,
            "[request id: <id_unknown>] input 'number' already exists in request",
        ),
        (
            b'{"id":"r","number":1,"parameters":{"number":2}}',
            InvalidArgument,
            "Converting keyword: 'parameters': [request id: r] input 'number' already exists in request",
        ),
        (
            b'{"number":1,"parameters":{"text":"a","text":"b"}}',
            InvalidArgument,
            "Converting keyword: 'parameters': [request id: <id_unknown>] input 'text' already exists in request",
        ),
        (
            b'{"number":1,"text":"a","text":"b","number":2}',
            InvalidArgument,
            "[request id: <id_unknown>] input 'text' already exists in request",
        ),
    ],
)
def test_invalid_generate_requests_are_refused(text: bytes, error: type[EdgeServeError], message: str) -> None:
    found = refusal(text)

    assert (type(found), found.message) == (error, message)


def test_a_name_that_is_also_a_value_is_not_given_twice() -> None:
    request = read(number=1, about="number", parameters={"which": "number"})

    assert request.parameters == {"about": "number", "which": "number"}


def test_a_missing_input_is_named() -> None:
    assert refusal(b'{"x":1}').message.startswith(
        "[request id: <id_unknown>] expected number of inputs between 1 and 4 but got 0 inputs for model 'm'."
    )


def test_an_input_may_not_be_called_like_the_nested_object() -> None:
    spec = TensorSpec("parameters", DataType.INT32, (1,))
    signature = Signature("m", "1", "python", 0, {"parameters": spec}, {}, required=1)

    found = refusal(b'{"parameters":[1]}', signature=signature)

    assert found.message == "Keyword 'parameters' for nested schema also given as input tensor name"


def test_a_body_that_is_too_long_is_not_read() -> None:
    assert "exceeds the maximum allowed input size of 8" in refusal(b'{"number":', 8).message


def test_tensors_count_together() -> None:
    """`text` is stored as 4 + 10 bytes, `number` as 4 * 50."""
    body = json.dumps({"text": "x" * 10, "number": [1] * 50}, separators=(",", ":")).encode()
    assert len(body) < 213
    assert len(generate.read(body, SIGNATURE, "", 214).inputs) == 2

    assert refusal(body, 213).message == (
        "request size of 14 bytes with input 'number' of size 200 bytes exceeds the maximum allowed input size of 213. "
        "Use --http-max-input-size to increase the limit."
    )


# ---- responses ----------------------------------------------------------------------------------------------------


def response(id: str = "", parameters: dict[str, Parameter] | None = None, **outputs: Any) -> InferResponse:
    tensors = []
    for name, value in outputs.items():
        if isinstance(value, list):
            tensors.append(InferTensor(name, DataType.BYTES, (len(value),), join_bytes(value)))
        else:
            array = np.array(value, np.float32)
            tensors.append(InferTensor(name, DataType.FP32, array.shape, from_array(array, DataType.FP32)))
    return InferResponse("m", "1", id, tensors, parameters or {})


def test_members_are_in_alphabetical_order_and_single_elements_are_scalars() -> None:
    written = generate.write(response("r", {"beta": 2, "zeta": False}, text=[b"a"], many=(1, 2.5), alone=((3,),)))

    assert written == (
        b'{"alone":3.0,"beta":2,"id":"r","many":[1.0,2.5],"model_name":"m","model_version":"1","text":"a","zeta":false}'
    )


def test_no_element_is_an_empty_array_and_no_id_no_member() -> None:
    assert generate.write(response(none=[])) == b'{"model_name":"m","model_version":"1","none":[]}'


def test_the_first_of_equal_names_counts() -> None:
    written = json.loads(generate.write(response(parameters={"model_name": "forged", "x": 1}, x=[b"out"])))

    assert written == {"model_name": "m", "model_version": "1", "x": 1}


def test_numbers_that_json_has_not_are_printed_as_triton_does() -> None:
    written = generate.write(response(parameters={"p": float("nan")}, x=(float("inf"), float("-inf"))))

    assert b'"p":NaN' in written
    assert b'"x":[Infinity,-Infinity]' in written


def test_an_output_that_cannot_be_text_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not valid UTF-8"):
        generate.write(response(x=[b"\xff"]))


def test_an_event_is_one_line_for_any_text() -> None:
    sent = generate.encode_event(generate.write(response(text=[b"a\nb\r\n\ndata: forged"])))

    assert sent.startswith(b"data: {")
    assert sent.endswith(b"}\n\n")
    assert sent.count(b"\n") == 2
    assert b"\r" not in sent
