"""Decoding ModelInferRequests: what repeats, what does not, and what is wrong, with protobuf as the oracle."""

from __future__ import annotations

import time

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferRequest
from edge_serve.protocol.grpc.infer import GrpcInferDecoder, MessageParts, Unreadable, cut
from edge_serve.workers.memory.regions import SharedMemoryRegions
from tests.footprint import footprint

NO_REGIONS = SharedMemoryRegions()

SIGNATURE = Signature(
    "m", "1", "python", 8,
    {"A": TensorSpec("A", DataType.INT32, (2,)), "S": TensorSpec("S", DataType.BYTES, (-1,), optional=True)},
    {"Y": TensorSpec("Y", DataType.INT32, (2,))}, required=1,
)  # fmt: skip


class Models:
    """Serves `m`, and counts the look-ups."""

    def __init__(self) -> None:
        self.signature = SIGNATURE
        self.asked: list[tuple[str, str]] = []

    def lookup(self, name: str, version: str) -> Models:
        self.asked.append((name, version))
        if name != "m":
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self


def message(request_id: str = "", values: bytes = b"\1\0\0\0\2\0\0\0", rows: int = 1) -> ModelInferRequest:
    made = ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[values])
    made.inputs.add(name="A", datatype="INT32", shape=[rows, 2])
    made.parameters["custom"].string_param = "c"
    return made


def decode(decoder: GrpcInferDecoder[Models], made: ModelInferRequest) -> InferRequest:
    return decoder.decode(made.SerializeToString())[0]


def test_a_repeated_message_is_filled_from_what_is_known_and_equal() -> None:
    decoder = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    first = decode(decoder, message("one"))
    again = decode(decoder, message("two", b"\3\0\0\0\4\0\0\0"))

    assert (first.id, again.id) == ("one", "two")
    assert again.inputs[0].array().tolist() == [[3, 4]]
    assert first.inputs[0].array().tolist() == [[1, 2]]
    assert again.parameters == first.parameters == {"custom": "c"}
    assert again.parameters is not first.parameters
    assert again.validated is SIGNATURE


def outcome(decoder: GrpcInferDecoder[Models], data: bytes) -> object:
    """Return the decoded request, or its error, in a form that can be compared."""
    try:
        request, served, wants_final = decoder.decode(data)
    except EdgeServeError as error:
        return type(error), error.message
    tensors = [(one.name, one.datatype, one.shape, bytes(one.data)) for one in request.inputs]
    fields = (request.id, request.model_version, request.parameters, request.outputs)
    return fields, tensors, served.signature, wants_final


def test_a_message_that_differs_from_a_known_one_in_any_byte_is_decoded_as_by_a_new_decoder() -> None:
    made = message()
    made.inputs.add(name="S", datatype="BYTES", shape=[1, 1])
    made.raw_input_contents.append(b"\1\0\0\0a")
    for data in (message().SerializeToString(), made.SerializeToString()):
        known = GrpcInferDecoder(Models().lookup, NO_REGIONS)
        for position in range(len(data)):
            known.decode(data)  # the latest of its length again
            changed = bytearray(data)
            changed[position] ^= 1
            new = GrpcInferDecoder(Models().lookup, NO_REGIONS)
            assert outcome(known, bytes(changed)) == outcome(new, bytes(changed)), f"byte {position}"


@pytest.mark.parametrize("empty_id", [b"\x1a\x00", b"\x1a\x80\x00"])
def test_bytes_behind_the_last_raw_content_are_read_although_an_empty_id_was_as_long(empty_id: bytes) -> None:
    whole = message().SerializeToString()
    head = whole.index(b"\x3a")  # the raw content
    known = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    known.decode(whole[:head] + empty_id + whole[head:])
    for behind in (b"\x1a\x01a", b"\x3a\x00", b"\xff\xff", b"\xff\xff\xff"):
        new = GrpcInferDecoder(Models().lookup, NO_REGIONS)
        assert outcome(known, whole + behind) == outcome(new, whole + behind)


def test_a_repeated_message_without_an_id_shares_no_values_with_the_first() -> None:
    decoder = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    first, again = decode(decoder, message()), decode(decoder, message("", b"\3\0\0\0\4\0\0\0"))

    assert first.inputs[0].array().tolist() == [[1, 2]]
    assert again.inputs[0].array().tolist() == [[3, 4]]
    assert again.parameters == first.parameters
    assert again.parameters is not first.parameters


def test_raw_contents_are_views_of_the_message() -> None:
    data = message().SerializeToString()
    for _ in range(2):
        request, _, _ = GrpcInferDecoder(Models().lookup, NO_REGIONS).decode(data)
        view = request.inputs[0].data
        assert isinstance(view, memoryview)
        assert view.obj is data


def test_a_known_head_with_other_sizes_is_checked_again() -> None:
    decoder = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    decode(decoder, message())

    with pytest.raises(InvalidArgument, match="Expected 8, got 4"):
        decode(decoder, message("", b"\1\0\0\0"))


def test_a_model_that_was_exchanged_is_validated_anew() -> None:
    models = Models()
    decoder = GrpcInferDecoder(models.lookup, NO_REGIONS)
    decode(decoder, message(rows=1))
    models.signature = Signature("m", "2", "python", 0, SIGNATURE.inputs, SIGNATURE.outputs, required=1)

    with pytest.raises(InvalidArgument, match="unexpected shape for input 'A'"):
        decode(decoder, message(rows=1))


def test_strings_of_a_known_head_are_checked_each_time() -> None:
    decoder = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    made = message()
    made.inputs.add(name="S", datatype="BYTES", shape=[1, 1])
    made.raw_input_contents.append(b"\1\0\0\0a")
    decode(decoder, made)
    made.raw_input_contents[1] = b"\5\0\0\0a"

    with pytest.raises(InvalidArgument, match="incomplete string data for inference input 'S'"):
        decode(decoder, made)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 20_000])
def test_cut_agrees_with_protobuf(length: int) -> None:
    made = message("i" * length, bytes(length))
    made.outputs.add(name="Y")
    data = made.SerializeToString()
    parts = cut(data)

    assert parts is not None
    assert parts.id == made.id
    assert [bytes(raw) for raw in parts.raw] == list(made.raw_input_contents)
    head = ModelInferRequest.FromString(parts.head)
    head.id = made.id
    head.raw_input_contents.extend(made.raw_input_contents)
    assert head == made


def test_cut_of_every_beginning_never_reads_beyond_it() -> None:
    data = message("id").SerializeToString()
    for end in range(len(data)):
        parts = cut(data[:end])
        assert parts is None or isinstance(parts, MessageParts)
        if parts is not None:
            ModelInferRequest.FromString(data[:end])


def test_a_message_with_too_many_raw_contents_is_refused_before_all_are_cut() -> None:
    made = message()
    made.raw_input_contents.extend([b""] * 100_000)
    before = time.process_time()
    with pytest.raises(InvalidArgument, match="expected at most 4096 entries of raw_input_contents, got more"):
        GrpcInferDecoder(Models().lookup, NO_REGIONS).decode(made.SerializeToString(), offset=0)

    assert time.process_time() - before < 0.03


def test_fields_in_another_order_are_read_too() -> None:
    raw = ModelInferRequest(raw_input_contents=[b"\1\0\0\0\2\0\0\0"]).SerializeToString()
    rest = message()
    del rest.raw_input_contents[:]
    data = raw + rest.SerializeToString()

    assert cut(data) is None
    request, _, _ = GrpcInferDecoder(Models().lookup, NO_REGIONS).decode(data)
    assert request.inputs[0].array().tolist() == [[1, 2]]


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05m", b"\x0a\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x01\xff"])
def test_bytes_that_are_no_message_are_refused_as_grpc_does(data: bytes) -> None:
    with pytest.raises((Unreadable, EdgeServeError)):
        GrpcInferDecoder(Models().lookup, NO_REGIONS).decode(data)


def test_the_model_is_looked_up_before_anything_else_is_looked_at() -> None:
    made = message()
    made.model_name = "nope"
    made.parameters["triton_x"].int64_param = 1

    with pytest.raises(NotFound, match="'nope' is not found"):
        decode(GrpcInferDecoder(Models().lookup, NO_REGIONS), made)


def test_forwarded_metadata_does_not_stay_in_what_is_remembered() -> None:
    decoder = GrpcInferDecoder(Models().lookup, NO_REGIONS)
    data = message().SerializeToString()

    assert decoder.decode(data, {"x-a": "1"})[0].parameters == {"custom": "c", "x-a": "1"}
    assert decoder.decode(data, {"x-a": "2"})[0].parameters == {"custom": "c", "x-a": "2"}
    assert decoder.decode(data)[0].parameters == {"custom": "c"}


def test_no_more_is_remembered_than_a_limit() -> None:
    models = Models()
    decoder = GrpcInferDecoder(models.lookup, NO_REGIONS)
    sizes: list[int] = []
    for index in range(2000):
        made = message()
        made.parameters["n"].int64_param = index
        decode(decoder, made)
        if index % 500 == 499:
            sizes.append(footprint(decoder) - footprint(models))

    assert max(sizes) < 1.1 * sizes[2]
