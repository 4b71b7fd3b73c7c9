"""JSON parts of requests: Triton's checks and texts, and the same answers where another request's inputs are reused."""

from __future__ import annotations

import json
import random
import re
import struct
from typing import Any

import pytest

from edge_serve.config.settings.kinds import PATTERN
from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unparsable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, RequestedOutput
from edge_serve.messages.shared_memory import NamedRegions, Place
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, Shared
from edge_serve.protocol.v2.infer import InferDecoder
from edge_serve.protocol.v2.infer_header import Tail, read, read_forwarded, split

UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
BOOLEAN = "attempt to access JSON non-boolean as boolean"
INPUT = {"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}


def decode(document: Any, limit: int = 1000) -> InferRequest:
    return read(document, Tail(memoryview(b""), 0, -1), "m", limit)


def refusal(document: Any, limit: int = 1000) -> EdgeServeError:
    with pytest.raises(EdgeServeError) as caught:
        decode(document, limit)
    return caught.value


def of_input(**members: Any) -> dict[str, Any]:
    """A request with one input; a member given as `...` is left out."""
    item = {name: value for name, value in {**INPUT, **members}.items() if value is not ...}
    return {"inputs": [item]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"id": 5, "inputs": []}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"id": None, "inputs": []}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"inputs": [], "outputs": None}, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ({"inputs": [], "parameters": 5}, "failed to get request params.: attempt to get members for non-object"),
        (of_input(name=5), "Unable to parse 'name': attempt to access JSON non-string as string"),
        (of_input(name=...), "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        (of_input(datatype=None), "Unable to parse 'datatype': attempt to access JSON non-string as string"),
        (of_input(shape=1), "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (of_input(shape=...), "Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
        (of_input(shape=[-1]), "Unable to parse 'shape': " + UNSIGNED),
        (of_input(shape=[1.0]), "Unable to parse 'shape': " + UNSIGNED),
        (of_input(shape=[True]), "Unable to parse 'shape': " + UNSIGNED),
        (of_input(data=5), "Unable to parse 'data': attempt to access JSON non-array as array"),
        (of_input(data=None), "Unable to parse 'data': attempt to access JSON non-array as array"),
        (of_input(data=..., parameters={"binary_data_size": -4}),
         "Unable to parse 'binary_data_size': " + UNSIGNED),
    ],
)  # fmt: skip
def test_wrong_json_types_are_internal_errors_as_in_triton(document: Any, text: str) -> None:
    error = refusal(document)
    assert (type(error), error.message) == (Unparsable, text)


@pytest.mark.parametrize("datatype", ["int32", "TYPE_INT32", "NOPE", "", "STRING"])
def test_unknown_datatypes(datatype: str) -> None:
    error = refusal(of_input(datatype=datatype))
    assert (type(error), error.message) == (InvalidArgument, "invalid datatype for input X")


@pytest.mark.parametrize("parameters", [5, [], None, {}, {"foo": "bar"}])
def test_parameters_of_an_input_that_say_nothing(parameters: Any) -> None:
    assert decode(of_input(parameters=parameters)).inputs[0].array().tolist() == [1]


@pytest.mark.parametrize(
    ("members", "ending"),
    [
        ({"data": ...}, "But no field is set"),
        ({"parameters": {"binary_data_size": 4}}, "But set 'data' 'binary_data_size'"),
        (
            {"data": ..., "parameters": {"binary_data_size": 4, "shared_memory_region": "r"}},
            "But set 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
def test_an_input_has_exactly_one_source(members: dict[str, Any], ending: str) -> None:
    error = refusal(of_input(**members))
    assert isinstance(error, InvalidArgument)
    assert error.message.startswith("Input must set only one of the following fields: 'data', 'binary_data_size'")
    assert error.message.endswith(ending)


def test_duplicates() -> None:
    twice = {"id": "r", "inputs": [INPUT, INPUT]}
    assert refusal(twice).message == "[request id: r] input 'X' already exists in request"


def test_of_outputs_of_one_name_the_first_counts() -> None:
    first = {"name": "Y", "parameters": {"classification": 2}}
    request = decode({"inputs": [INPUT], "outputs": [first, {"name": "Z"}, {"name": "Y"}]})
    assert [(output.name, output.classification) for output in request.outputs] == [("Y", 2), ("Z", 0)]


@pytest.mark.parametrize(
    ("shape", "ending"),
    [
        ([2**63], "contains one or more invalid dimensions"),
        ([2**32, 2**32], "causes total element count to exceed maximum size of 9223372036854775807"),
        ([2**62], "exceeds maximum allowed size (9223372036854775807)"),
        ([2**32], "has a byte_size (17179869184 bytes) that exceeds the maximum allowed value of 1000 bytes. Use "
         "--http-max-input-size to increase the limit."),
    ],
)  # fmt: skip
def test_shapes_that_would_not_fit_into_memory(shape: list[int], ending: str) -> None:
    error = refusal(of_input(shape=shape))
    assert isinstance(error, InvalidArgument)
    assert error.message.endswith(ending)


def test_data_of_an_empty_tensor_is_not_looked_at() -> None:
    assert decode(of_input(shape=[0, 5], data="anything")).inputs[0].data == b""


def test_parameters() -> None:
    request = decode(
        {
            "inputs": [],
            "parameters": {
                "sequence_id": 2**64 - 1, "sequence_start": True, "sequence_end": True, "priority": 3, "timeout": 5,
                "binary_data_output": True, "s": "t", "i": -3, "b": False, "f": 2.0, "big": 2**64 - 1, "": "empty",
            },
        }
    )  # fmt: skip
    assert (request.correlation_id, request.flags) == (2**64 - 1, SEQUENCE_START | SEQUENCE_END)
    assert (request.priority, request.timeout_us, request.binary_default) == (3, 5, True)
    assert request.parameters == {"s": "t", "i": -3, "b": False, "f": 2.0, "big": 2.0**64, "": "empty"}
    assert type(request.parameters["big"]) is float


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("sequence_id", -1, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ("sequence_id", True, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ("sequence_start", 1, "Unable to parse 'sequence_start': " + BOOLEAN),
        ("timeout", "5", "Unable to parse 'timeout': " + UNSIGNED),
        ("priority", 1.5, "Unable to parse 'priority': " + UNSIGNED),
        ("binary_data_output", 1, "Unable to parse 'binary_data_output': " + BOOLEAN),
        ("n", None, "parameter 'n' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ("l", [1], "parameter 'l' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ("triton_x", 1, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
         "specified."),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be(name: str, value: Any, text: str) -> None:
    assert refusal({"inputs": [], "parameters": {name: value}}).message == text


def test_a_correlation_id_has_its_limit() -> None:
    assert decode({"inputs": [INPUT], "parameters": {"sequence_id": "x" * 128}}).correlation_id == "x" * 128
    error = refusal({"inputs": [], "parameters": {"sequence_id": "x" * 129}})
    assert error.http_status == 501
    assert error.message == "string correlation ID cannot be longer than 128 characters"


def test_outputs() -> None:
    request = decode(
        {
            "inputs": [INPUT],
            "outputs": [
                {"name": "Y"},
                {"name": "Z", "parameters": {"binary_data": True, "classification": 2}},
                {"name": "W", "parameters": 5},
            ],
        }
    )
    assert request.outputs == [RequestedOutput("Y"), RequestedOutput("Z", True, 2), RequestedOutput("W")]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"binary_data": 1}, "Unable to parse 'binary_data': " + BOOLEAN),
        ({"classification": -1},
         "Unable to set 'classification': " + UNSIGNED),
        ({"classification": True},
         "Unable to set 'classification': " + UNSIGNED),
        ({"shared_memory_region": "r", "classification": 1},
         "Output can't set both 'shared_memory_region' and 'classification'"),
        ({"shared_memory_region": "r", "binary_data": True},
         "Output can't set both 'shared_memory_region' and 'binary_data'"),
    ],
)  # fmt: skip
def test_outputs_that_cannot_be(parameters: dict[str, Any], text: str) -> None:
    assert refusal({"inputs": [], "outputs": [{"name": "Y", "parameters": parameters}]}).message == text


def test_no_shared_memory_region_is_known() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    for document in (
        of_input(data=..., parameters=region),
        {"inputs": [], "outputs": [{"name": "Y", "parameters": region}]},
    ):
        error = refusal(document)
        assert (type(error), error.message) == (NotFound, "Unable to find shared memory region: 'r'")


def test_parts_of_regions() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    document = of_input(data=..., shape=[2], parameters={**region, "shared_memory_offset": 4})
    document["outputs"] = [{"name": "Y", "parameters": region}, {"name": "Z"}]

    request = read(document, Tail(memoryview(b""), 0, -1), "m", 1000, NamedRegions())

    (tensor,) = request.inputs
    assert isinstance(tensor, Shared)
    assert (tensor.region, tensor.place, len(tensor.data)) == ("r", 4, 8)
    assert [output.place for output in request.outputs] == [Place("r", 0, 8, "Y"), None]
    assert request.shared
    assert not decode(of_input()).shared


@pytest.mark.parametrize(
    ("member", "value", "text"),
    [
        ("region", 7, "attempt to access JSON non-string as string"),
        ("offset", -1, UNSIGNED),
        ("byte_size", "8", UNSIGNED),
    ],
)
def test_parts_of_regions_that_cannot_be(member: str, value: Any, text: str) -> None:
    region = {"shared_memory_region": "r", f"shared_memory_{member}": value}
    error = refusal(of_input(data=..., parameters=region))
    assert (type(error), error.message) == (Unparsable, f"Unable to parse 'shared_memory_{member}': {text}")


PLAIN = Signature(
    "m", "1", "python", 4,
    {"X": TensorSpec("X", DataType.INT32, (-1,)), "S": TensorSpec("S", DataType.BYTES, (1,), optional=True)},
    {"Y": TensorSpec("Y", DataType.INT32, (-1,))}, required=1,
)  # fmt: skip
SEQUENCES = Signature(
    "s", "1", "python", 4, PLAIN.inputs, PLAIN.outputs, has_sequence_batching=True,
    correlation_id_type=DataType.UINT64, required=1,
)  # fmt: skip
X: dict[str, Any] = {"name": "X", "shape": [1, 2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}
S: dict[str, Any] = {"name": "S", "datatype": "BYTES", "parameters": {"binary_data_size": 5}, "shape": [1, 1]}
Y: dict[str, Any] = {"name": "Y", "parameters": {"binary_data": True}}
NUMBERS, TEXT = struct.pack("<2i", 1, 2), b"\1\0\0\0a"


def seen(decoder: InferDecoder, signature: Signature, body: bytes, length: int) -> Any:
    """Return the request as a model sees it, or the error."""
    try:
        request = decoder.decode(signature, "1", body, length, offset=64)
    except EdgeServeError as error:
        return type(error), error.message
    assert isinstance(request, InferRequest)
    request.validated = None
    inputs = [(one.name, one.datatype, one.shape, bytes(one.data), one.offset) for one in request.inputs]
    request.inputs = []
    return inputs, request


def text_of(members: list[tuple[str, Any]], gap: str) -> bytes:
    """A JSON object with these members, in this order."""
    pieces = [f"{json.dumps(name)}:{gap}{json.dumps(value)}" for name, value in members]
    return ("{" + f",{gap}".join(pieces) + "}").encode()


def one_of_many(dice: random.Random) -> tuple[bytes, bytes]:
    """A JSON part and what follows it: mostly good, of a few kinds, with members in any order."""
    members: list[tuple[str, Any]] = [("inputs", dice.choice(([X], [X], [X, S], [S])))]
    if dice.random() < 0.7:
        members.append(("outputs", dice.choice(([Y], [], [{"name": "Y"}], [{"name": "Z"}]))))
    if dice.random() < 0.3:
        members.append(("odd", dice.choice((1, [1], {"inputs": []}))))
    own: list[tuple[str, Any]] = []
    if dice.random() < 0.7:
        own.append(("id", dice.choice((str(dice.randrange(50)), '"inputs":[', 7))))
    if dice.random() < 0.8:
        names = ("sequence_id", "sequence_start", "priority", "timeout", "binary_data_output", "mine", "inputs")
        values = (dice.randrange(50), True, "a", -1, {"inputs": [1]})
        own.append(("parameters", {dice.choice(names): dice.choice(values) for _ in range(dice.randrange(4))}))
    where = dice.choice(("before", "before", "behind", "around", "anywhere"))
    if where == "before":
        members = own + members
    elif where == "behind":
        members += own
    elif where == "around":
        members = own[:1] + members + own[1:]
    else:
        members += own + own[:1]
        dice.shuffle(members)
    text = text_of(members, dice.choice(("", "", " ", "\n  ")))
    if dice.random() < 0.2:
        at = dice.randrange(len(text))
        text = text[:at] + dice.choice((b"", b",", b"}", b"]", b'"', b"{", b"\xff")) + text[at + dice.randrange(2) :]
    return text, dice.choice((NUMBERS, NUMBERS, NUMBERS + TEXT, NUMBERS + TEXT[:4], TEXT))


@pytest.mark.parametrize("count", [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_decoder_that_knows_much_answers_as_a_new_one(count: int) -> None:
    dice = random.Random(5)
    warm = InferDecoder()
    answered = 0
    for _ in range(count):
        text, tail = one_of_many(dice)
        signature = dice.choice((PLAIN, SEQUENCES))
        found = seen(warm, signature, text + tail, len(text))
        assert found == seen(InferDecoder(), signature, text + tail, len(text)), text
        answered += isinstance(found[1], InferRequest)
    assert answered > count / 14
    assert sum(known is not None for known in warm._common.values()) > 10


def test_requests_that_differ_in_id_and_parameters_share_what_is_known_of_their_inputs() -> None:
    decoder = InferDecoder()
    for number in range(20):
        text = text_of([("id", str(number)), ("parameters", {"sequence_id": number}), ("inputs", [X])], "")
        inputs, request = seen(decoder, PLAIN, text + NUMBERS, len(text))
        assert (request.id, request.correlation_id) == (str(number), number)
        assert inputs == [("X", DataType.INT32, (1, 2), NUMBERS, 64 + len(text))]
    assert [known is not None for known in decoder._common.values()] == [True]


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (b'{"id":"a","inputs":[]}', {"id": "a"}),
        (b'{"id":"a","parameters":{"b":1} , "inputs":[],"outputs":[]}', {"id": "a", "parameters": {"b": 1}}),
        (b'{"inputs":[],"outputs":[] ,"parameters":{"b":1}}', {"parameters": {"b": 1}}),
        (b'{"id":"a","inputs":[],"parameters":{}}', {"id": "a", "parameters": {}}),
        (b'{"inputs":[]}', None),
        (b'{"inputs":[{"shape":[1],"parameters":{}}]}', None),
        (b'{"id":"a","odd":1,"inputs":[]}', None),
        (b'{"inputs":[],"parameters":{},"odd":1}', None),
        (b'{"id":"a,"inputs":[]}', None),
        (b'{,"inputs":[],"parameters":{}}', None),
        (b'{"id":"a",,"inputs":[]}', None),
        (b'{"parameters":{"inputs":[],"b":1}}', None),
        (b'{"id":",\\"inputs\\":"}', None),
        (b'[1,"inputs"]', None),
        (b"", None),
    ],
)
def test_a_text_is_cut_between_its_outermost_members(text: bytes, own: dict[str, Any] | None) -> None:
    found = split(text)
    assert (found.own if found else None) == own


HEADERS = (("Host", "h"), ("X-Fwd-One", "1"), ("Other", "2"), ("x-fwd-two", "b"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(?i)x-fwd-.*", {"X-Fwd-One": "1", "x-fwd-two": "b"}),
        ("X-FWD", {"X-Fwd-One": "1", "x-fwd-two": "b"}),
        ("(?-i)x-fwd", {"x-fwd-two": "b"}),
        ("(?-i:x-fwd)", {"x-fwd-two": "b"}),
        ("^one", {}),
        ("one", {"X-Fwd-One": "1"}),
    ],
)
def test_headers_whose_name_holds_a_match(pattern: str, expected: dict[str, str]) -> None:
    assert read_forwarded(HEADERS, PATTERN.parse(pattern)) == expected


@pytest.mark.parametrize("name", ["timeout", "headers", "sequence_id", "triton_anything"])
def test_reserved_names(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_forwarded((("A", "1"), (name, "2")), re.compile(".*"))
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
