"""What is remembered of other requests' inputs changes no answer, whatever else a request says or gets wrong."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType
from edge_serve.protocol.v2.infer import InferDecoder
from edge_serve.protocol.v2.infer_split import split

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
    """What a model would notice, or the error."""
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


def test_a_decoder_that_knows_much_answers_as_a_new_one() -> None:
    dice = random.Random(5)
    warm = InferDecoder()
    answered = 0
    for _ in range(20_000):
        text, tail = one_of_many(dice)
        signature = dice.choice((PLAIN, SEQUENCES))
        found = seen(warm, signature, text + tail, len(text))
        assert found == seen(InferDecoder(), signature, text + tail, len(text)), text
        answered += isinstance(found[1], InferRequest)
    assert answered > 1500
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
