from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, RequestedOutput
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Shape, Unseen, join_bytes, shape_text
from edge_serve.protocol.inference.validate import check_strings, validate


def signature(
    *inputs: TensorSpec, max_batch_size: int = 8, corrid: DataType | None = None, sequence: bool = False
) -> Signature:
    specs = inputs or (TensorSpec("A", DataType.INT32, (4,)), TensorSpec("B", DataType.INT32, (4,)))
    return Signature(
        "m", "1", "python", max_batch_size,
        {spec.name: spec for spec in specs}, {"OUT": TensorSpec("OUT", DataType.INT32, (4,))},
        has_sequence_batching=sequence, correlation_id_type=corrid,
        required=sum(not spec.optional for spec in specs),
    )  # fmt: skip


def tensor(name: str, shape: Shape, datatype: DataType = DataType.INT32, data: bytes | None = None) -> InferTensor:
    size = datatype.size
    for dim in shape:
        size *= dim
    return InferTensor(name, datatype, shape, bytes(max(size, 0)) if data is None else data)


def request(*inputs: InferTensor, **fields: object) -> InferRequest:
    return InferRequest("m", inputs=list(inputs), **fields)  # type: ignore[arg-type]  # a test's shorthand


def refusal(request: InferRequest, of: Signature) -> str:
    with pytest.raises(InvalidArgument) as caught:
        validate(request, of)
    assert request.validated is None
    return caught.value.message


def test_rows_are_the_batch_dimension() -> None:
    model = signature()
    good = request(tensor("A", (3, 4)), tensor("B", (3, 4)))
    assert validate(good, model) == 3
    assert (good.rows, good.validated) == (3, model)
    assert validate(request(tensor("A", (4,)), tensor("B", (4,))), signature(max_batch_size=0)) == 1


def test_a_batch_of_no_rows_lacks_the_bytes_of_one() -> None:
    text = refusal(request(tensor("A", (0, 4)), tensor("B", (0, 4))), signature())
    assert text == "[request id: <id_unknown>] input byte size mismatch for input 'B' for model 'm'. Expected 16, got 0"


def test_inputs_validated_for_a_signature_are_not_validated_again() -> None:
    model = signature()
    good = request(tensor("A", (3, 4)), tensor("B", (3, 4)))
    validate(good, model)
    good.inputs.clear()
    assert validate(good, model) == 3
    with pytest.raises(InvalidArgument):
        validate(good, signature())


@pytest.mark.parametrize("request_id", ["", "r1"])
def test_input_count(request_id: str) -> None:
    text = refusal(request(tensor("A", (1, 4)), id=request_id), signature())
    assert text == (
        f"[request id: {request_id or '<id_unknown>'}] expected 2 inputs but got 1 inputs for model 'm'. Got input(s) "
        "['A'], but missing required input(s) ['B']. Please provide all required input(s)."
    )


def test_input_count_with_optional_inputs() -> None:
    model = signature(TensorSpec("A", DataType.INT32, (4,)), TensorSpec("B", DataType.INT32, (4,), optional=True))
    assert validate(request(tensor("A", (2, 4))), model) == 2
    assert "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) []" in refusal(
        request(), model
    )


def test_names() -> None:
    model = signature()
    a, b = tensor("A", (1, 4)), tensor("B", (1, 4))
    assert refusal(request(a, tensor("X", (1, 4))), model) == "unexpected inference input 'X' for model 'm'"
    assert refusal(request(a, a), model) == "[request id: <id_unknown>] input 'A' already exists in request"
    unknown = request(a, b, outputs=[RequestedOutput("NOPE")])
    assert refusal(unknown, model) == "unexpected inference output 'NOPE' for model 'm'"


def test_batch_sizes() -> None:
    model = signature()
    assert refusal(request(tensor("A", ()), tensor("B", ())), model).endswith(
        "has no shape but model requires batch dimension for 'm'"
    )
    assert refusal(request(tensor("A", (1, 4)), tensor("B", (2, 4))), model).endswith(
        "input 'A' batch size does not match other inputs for 'm'"
    )
    assert refusal(request(tensor("A", (9, 4)), tensor("B", (9, 4))), model).endswith(
        "inference request batch-size must be <= 8 for 'm'"
    )


def test_datatype() -> None:
    wrong = request(tensor("A", (1, 4)), tensor("B", (1, 4), DataType.FP32))
    assert refusal(wrong, signature()) == (
        "[request id: <id_unknown>] inference input 'B' data-type is 'FP32', but model 'm' expects 'INT32'"
    )


@pytest.mark.parametrize("shape", [(1, 5), (4,), (1, 1, 4), (1,)])
def test_shape_of_a_model_that_batches(shape: Shape) -> None:
    text = refusal(request(tensor("A", shape)), signature(TensorSpec("A", DataType.INT32, (4,))))
    got = "[" + ",".join(map(str, shape)) + "]"
    assert f"unexpected shape for input 'A' for model 'm'. Expected [-1,4], got {got}. NOTE: Setting a non-zero" in text


def test_shape_of_a_model_that_does_not_batch() -> None:
    model = signature(TensorSpec("A", DataType.INT32, (-1, 2)), max_batch_size=0)
    assert validate(request(tensor("A", (5, 2))), model) == 1
    assert validate(request(tensor("A", (0, 2))), model) == 1
    assert refusal(request(tensor("A", (5, 3))), model) == (
        "[request id: <id_unknown>] unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [5,3]. "
    )
    assert "All input dimensions should be specified for input 'A'" in refusal(
        request(tensor("A", (-1, 2), data=b"")), model
    )


@pytest.mark.parametrize("shape", [(-1, 0), (-2, -2), (2, -1)])
def test_negative_dimensions_never_pass(shape: Shape) -> None:
    for batch in (0, 8):
        model = signature(TensorSpec("A", DataType.INT32, (-1,) * (1 if batch else 2)), max_batch_size=batch)
        assert "All input dimensions should be specified" in refusal(request(tensor("A", shape)), model)


@pytest.mark.parametrize("shape", [(-1,), (-1, -1, -1), (-1, 3), (-5, 2)])
def test_a_negative_dimension_in_a_shape_that_does_not_match_otherwise(shape: Shape) -> None:
    got = "[" + ",".join(map(str, shape)) + "]"
    fixed = signature(TensorSpec("A", DataType.INT32, (2, 2)), max_batch_size=0)
    assert f"Expected [2,2], got {got}. " in refusal(request(tensor("A", shape)), fixed)


def test_shape_tensors_have_no_batch_dimension() -> None:
    model = signature(
        TensorSpec("A", DataType.INT32, (4,)), TensorSpec("S", DataType.INT32, (2,), is_shape_tensor=True)
    )
    assert validate(request(tensor("A", (3, 4)), tensor("S", (2,))), model) == 3
    for shape in (1, 2), (3,):
        text = refusal(request(tensor("A", (1, 4)), tensor("S", shape)), model)
        assert text.endswith(f"unexpected shape for input 'S' for model 'm'. Expected [2], got {shape_text(shape)}. ")


def test_byte_sizes() -> None:
    model = signature(TensorSpec("A", DataType.INT32, (4,)))
    assert refusal(request(tensor("A", (1, 4), data=bytes(12))), model) == (
        "[request id: <id_unknown>] input byte size mismatch for input 'A' for model 'm'. Expected 16, got 12"
    )


STRINGS = join_bytes([b"a", b"", b"bcd"])


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.BYTES])
def test_an_empty_tensor_has_dimensions_that_an_array_can_have(datatype: DataType) -> None:
    model = signature(TensorSpec("A", datatype, (-1, -1)))
    for huge in (2**61, 2**64 - 1):
        text = refusal(request(tensor("A", (1, 0, huge), datatype, b"")), model)
        assert text.startswith(f"[request id: <id_unknown>] shape [1,0,{huge}] of input 'A' for model 'm' is too large")
    empty = tensor("A", (1, 0, 2**60 - 1), datatype, b"")
    assert validate(request(empty), model) == 1
    assert empty.array().size == 0


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (STRINGS, 4, "expected 4 string elements for inference input 'X' for model 'm', got 3"),
        (STRINGS, 2, "unexpected number of string elements 3 for inference input 'X' for model 'm', expecting 2"),
        (b"", 1, "expected 1 string elements for inference input 'X' for model 'm', got 0"),
        (STRINGS + b"\x01\x00", 4, "incomplete string length indicator for inference input 'X' for model 'm', "
         "expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one "
         "buffer."),
        (b"\x01\0\0\0", 2, "expected 2 string elements for inference input 'X' for model 'm', got 1"),
        (STRINGS + b"\xff\xff\xff\xffab", 5, "expected 5 string elements for inference input 'X' for model 'm', got 4"),
    ],
)  # fmt: skip
def test_wrong_string_elements(data: bytes, count: int, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_strings(memoryview(data), count, "X", "m", "")
    assert caught.value.message == "[request id: <id_unknown>] " + message


def test_a_string_element_that_ends_too_early() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_strings(b"\xff\xff\xff\xffab", 1, "X", "m", "")
    assert caught.value.message == (
        "incomplete string data for inference input 'X', expecting string of length 4294967295 but only 2 bytes "
        "available"
    )


@pytest.mark.parametrize("count", [0, 1, 31, 32, 1000])
def test_equally_long_strings_take_the_short_way_to_the_same_answer(count: int) -> None:
    data = join_bytes([b"same"] * count)
    check_strings(data, count, "X", "m", "")
    with pytest.raises(InvalidArgument, match="string elements"):
        check_strings(data, count + 1, "X", "m", "")
    if count:
        with pytest.raises(InvalidArgument, match="string elements"):
            check_strings(data, count - 1, "X", "m", "")
    # as many bytes as `count` equal ones would have, shared out differently
    if count > 1:
        check_strings(join_bytes([b"sam", b"esame"] + [b"same"] * (count - 2)), count, "X", "m", "")


@pytest.mark.parametrize(
    ("corrid", "correlation_id", "found"),
    [
        (DataType.UINT64, "s", "BYTES"), (DataType.BYTES, 5, "UINT64"), (DataType.BYTES, 0, "UINT64"),
        (DataType.INT32, 5, None), (DataType.BYTES, "s", None), (DataType.UINT64, "", None),
    ],
)  # fmt: skip
def test_correlation_id_type(corrid: DataType, correlation_id: int | str, found: str | None) -> None:
    model = signature(TensorSpec("A", DataType.INT32, (4,)), corrid=corrid, sequence=True)
    asked = request(tensor("A", (1, 4)), correlation_id=correlation_id)
    if found is None:
        assert validate(asked, model) == 1
    else:
        assert refusal(asked, model) == (
            f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is '{found}', but model 'm' "
            f"expects '{corrid.name}'"
        )


def test_unseen_tensors_are_measured() -> None:
    numbers = signature(TensorSpec("A", DataType.INT32, (4,)))
    validate(request(InferTensor("A", DataType.INT32, (1, 4), Unseen.buffer(16))), numbers)
    assert refusal(request(InferTensor("A", DataType.INT32, (1, 4), Unseen.buffer(15))), numbers).endswith(
        "Expected 16, got 15"
    )

    strings = signature(TensorSpec("A", DataType.BYTES, (4,)))
    validate(request(InferTensor("A", DataType.BYTES, (1, 4), Unseen.buffer(16))), strings)
    assert refusal(request(InferTensor("A", DataType.BYTES, (1, 4), Unseen.buffer(15))), strings) == (
        "[request id: <id_unknown>] expected 4 string elements for inference input 'A' for model 'm', got 15 bytes, "
        "which do not even hold their lengths"
    )
