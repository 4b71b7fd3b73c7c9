from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.tensors import DataType, join_bytes
from edge_serve.protocol.v2.infer_tensors import MAX_DEPTH, flatten, read, write
from tests.examples import examples

INTEGERS = [
    DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64,
    DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64,
]  # fmt: skip


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_travel_to_both_ends_of_their_range(datatype: DataType) -> None:
    info = np.iinfo(datatype.numpy)
    values = [int(info.min), 0, 1, int(info.max)]
    packed = read(values, datatype, (4,), "X")
    assert np.frombuffer(packed, datatype.numpy).tolist() == values
    assert json.loads(write(packed, datatype, (4,), "X")) == values


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("wrong", [1.0, 1.5, "1", True, None, {}])
def test_integers_take_integers_only(datatype: DataType, wrong: Any) -> None:
    sign = "unsigned" if datatype.name.startswith("U") else "signed"
    with pytest.raises(Internal) as caught:
        read([1, wrong], datatype, (2,), "X")
    assert caught.value.message == (
        f"Unable to parse 'data': attempt to access JSON non-{sign}-integer as {sign}-integer"
    )


@pytest.mark.parametrize(
    ("datatype", "value", "error"),
    [
        (DataType.UINT8, 256, InvalidArgument),
        (DataType.INT8, -129, InvalidArgument),
        (DataType.INT32, 2**31, InvalidArgument),
        (DataType.UINT8, -1, Internal),  # to RapidJSON no unsigned integer at all
        (DataType.UINT64, -1, Internal),
        (DataType.INT64, 2**63, Internal),
    ],
)
def test_integers_out_of_range_are_refused_and_never_wrapped(
    datatype: DataType, value: int, error: type[EdgeServeError]
) -> None:
    with pytest.raises(error):
        read([value], datatype, (1,), "X")


@pytest.mark.parametrize("wrong", [1, 0, 1.0, "true", None])
def test_bool_takes_true_and_false_only(wrong: Any) -> None:
    assert read([True, False], DataType.BOOL, (2,), "X") == b"\x01\x00"
    with pytest.raises(Internal, match="non-boolean as boolean"):
        read([True, wrong], DataType.BOOL, (2,), "X")


@pytest.mark.parametrize("wrong", [True, "1", None])
def test_floats_take_any_number(wrong: Any) -> None:
    assert np.frombuffer(read([1, 2.5, math.inf], DataType.FP32, (3,), "X"), "f4").tolist() == [1.0, 2.5, math.inf]
    assert np.frombuffer(read([1e300], DataType.FP32, (1,), "X"), "f4").tolist() == [math.inf]
    assert np.frombuffer(read([2**64 - 1], DataType.FP64, (1,), "X"), "f8").tolist() == [float(2**64 - 1)]
    with pytest.raises(Internal, match="non-number as double"):
        read([1.5, wrong], DataType.FP64, (2,), "X")


@pytest.mark.parametrize("count", [20, 2000])
@pytest.mark.parametrize("wrong", [True, False, "1", "", None, {}, 2.5])
@pytest.mark.parametrize("number", [0, 7])
def test_one_wrong_value_among_many_is_found(count: int, wrong: Any, number: int) -> None:
    for at in (0, count // 2, count - 1):
        flat = [number] * count
        flat[at] = wrong
        for data in (flat, [flat[: count // 2], flat[count // 2 :]], [*([number] * count), wrong]):
            with pytest.raises((Internal, InvalidArgument)):
                read(data, DataType.INT32, (count,), "X")


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.INT64, DataType.UINT8])
def test_many_values_are_the_same_as_few(datatype: DataType) -> None:
    values = [i % 7 for i in range(3000)]
    wanted = np.array(values, datatype.numpy).tobytes()
    for data in (values, [values], [values[i : i + 3] for i in range(0, 3000, 3)], [values[:5], [values[5:]]]):
        assert read(data, datatype, (3000,), "X") == wanted


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_cannot_be_json(datatype: DataType) -> None:
    with pytest.raises(InvalidArgument, match=f"receiving {datatype.name} data via JSON is not supported.* input X$"):
        read([1.0], datatype, (1,), "X")
    with pytest.raises(InvalidArgument, match=f"sending {datatype.name} data via JSON is not supported"):
        write(b"\0\0", datatype, (1,), "X")


def test_wrong_numbers_of_elements() -> None:
    with pytest.raises(Internal) as few:
        read([1], DataType.INT32, (2,), "X")
    assert few.value.message == "Unable to parse 'data': Shape does not match true shape of 'data' field"
    with pytest.raises(Internal) as many:
        read([1, 2, 3], DataType.INT32, (2,), "X")
    assert many.value.message == "Unable to parse 'data': Shape does not match true shape of 'data' field"


nested = st.recursive(st.integers(0, 99), lambda inner: st.lists(inner, max_size=4), max_leaves=20)


@examples(30, 500, st.lists(nested))
def test_flatten_visits_values_in_row_major_order(data: list[Any]) -> None:
    def walk(value: Any) -> list[Any]:
        return [leaf for item in value for leaf in walk(item)] if isinstance(value, list) else [value]

    values, kinds = flatten(data)
    assert values == walk(data)
    assert kinds == [int] * len(values)


def test_nesting_is_limited() -> None:
    data: list[Any] = [7]
    for _ in range(MAX_DEPTH - 1):
        data = [data]
    assert flatten(data)[0] == [7]
    with pytest.raises(InvalidArgument, match=r"^JSON nesting depth exceeds maximum allowed limit \(100\)$"):
        flatten([data])


def test_strings() -> None:
    assert read(["a", ["é", ""]], DataType.BYTES, (3,), "X") == join_bytes([b"a", "é".encode(), b""])
    assert json.loads(write(join_bytes([b"a", b'"', b"\x00"]), DataType.BYTES, (3,), "X")) == ["a", '"', "\x00"]
    with pytest.raises(Internal, match="Unable to parse JSON bytes array: attempt to access JSON non-string as string"):
        read(["a", 1], DataType.BYTES, (2,), "X")
    with pytest.raises(InvalidArgument, match="not valid UTF-8"):
        write(join_bytes([b"\xff"]), DataType.BYTES, (1,), "X")
    for data, shape in ((b"\x09\0\0\0a", (1,)), (join_bytes([b"a"]), (2,))):
        with pytest.raises(Internal, match=r"^output tensor shape does not match size of output for 'X'"):
            write(data, DataType.BYTES, shape, "X")


def test_floats_are_printed_as_the_doubles_they_are() -> None:
    assert write(np.array([0.1, 1.0, -0.0], "f4").tobytes(), DataType.FP32, (3,), "X") == (
        b"[0.10000000149011612,1.0,-0.0]"
    )
    assert write(np.array([0.1], "f8").tobytes(), DataType.FP64, (1,), "X") == b"[0.1]"


def test_nan_and_infinity_are_printed_as_tokens() -> None:
    text = write(np.array([math.nan, math.inf, -math.inf, 1.5], "f4").tobytes(), DataType.FP32, (4,), "X")
    assert text == b"[NaN,Infinity,-Infinity,1.5]"


def test_any_byte_but_zero_is_true() -> None:
    assert write(b"\x00\x01\x02", DataType.BOOL, (3,), "X") == b"[false,true,true]"


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_data_may_start_anywhere(count: int) -> None:
    raw = b"\0" + np.arange(count, dtype="<i8").tobytes()
    assert json.loads(write(memoryview(raw)[1:], DataType.INT64, (count,), "X")) == list(range(count))


def test_bytes_that_do_not_make_up_the_shape() -> None:
    with pytest.raises(Internal, match=r"^output tensor shape does not match size of output for 'X'"):
        write(b"\0\0\0", DataType.INT32, (1,), "X")
