"""`pb_utils.Tensor`: views, types, DLPack both ways. Texts as recorded from Triton 2.51."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.python.api import dlpack
from edge_serve.backends.python.api.errors import TritonModelException
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.backends.python_path.triton_python_backend_utils import serialize_byte_tensor
from edge_serve.messages import tensors
from edge_serve.messages.tensors import BY_NUMBER, Array, DataType
from tests.backends.hosting import tensor

PLAIN = [datatype for datatype in DataType if datatype not in (DataType.BYTES, DataType.BF16)]


def received(array: Array, datatype: DataType | None = None) -> Tensor:
    return Tensor.received(tensor("X", array, datatype))


@pytest.mark.parametrize("datatype", PLAIN)
def test_every_type_in_and_out(datatype: DataType) -> None:
    values = np.array([[0, 1], [1, 0]]).astype(datatype.numpy)
    made = received(values)
    assert made.triton_dtype() == datatype.value
    assert made.shape() == [2, 2]
    assert made.as_numpy().dtype == datatype.numpy
    assert made.as_numpy() is made.as_numpy()
    wire = Tensor("Y", made.as_numpy()).as_wire()
    assert (wire.name, wire.datatype, wire.shape) == ("Y", datatype, (2, 2))
    assert wire.array().tolist() == values.tolist()


def test_an_input_that_is_passed_on_is_not_converted() -> None:
    wire = tensor("X", np.array([b"a"], object))
    assert Tensor.received(wire).as_wire() is wire


def test_strings_are_object_arrays_of_bytes() -> None:
    made = received(np.array([[b"a"], [b""]], object))
    assert made.as_numpy().tolist() == [[b"a"], [b""]]
    assert made.shape() == [2, 1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([b"ab", "é", 5, None], object), [b"ab", "é".encode(), b"5", b"None"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array([[b"a", b"b"], [b"c", b"d"]], object).T, [b"a", b"c", b"b", b"d"]),
    ],
)
def test_strings_are_written_as_triton_writes_them(values: Array, expected: list[bytes]) -> None:
    wire = Tensor("Y", values).as_wire()
    assert wire.datatype is DataType.BYTES
    assert tensors.split_bytes(wire.data) == expected


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return f"<{super().__str__()}>"


class Raw(bytes):
    pass


@pytest.mark.parametrize("others", [[], ["text"], [7]])
def test_strings_have_one_rule_for_subclasses_alone_and_among_others(others: list[object]) -> None:
    """Those of `str` decide by `__str__`, as in Triton (`class Label(str, Enum)`); bytes of any kind are written as
    they are, where Triton writes their `repr`."""
    elements = [*others, Word("a"), Raw(b"b"), np.bytes_(b"c"), bytearray(b"d"), memoryview(b"e"), np.str_("f")]
    values = np.empty(len(elements), object)
    values[:] = elements
    written = [str(one).encode() for one in others] + [b"<a>", b"b", b"c", b"d", b"e", b"f"]
    assert tensors.split_bytes(Tensor("Y", values).as_wire().data) == written
    serialized = serialize_byte_tensor(values)
    assert isinstance(serialized, bytes)
    assert tensors.split_bytes(serialized) == written


def test_strings_are_copied_when_the_tensor_is_made() -> None:
    """As in Triton: a model may fill one array for one response after the other."""
    buffer = np.array([b"first"], object)
    made = Tensor("Y", buffer)
    buffer[0] = b"second"
    assert tensors.split_bytes(made.as_wire().data) == [b"first"]
    assert made.as_numpy() is buffer

    passed_on = received(np.array([b"first"], object))
    passed_on.as_numpy()[0] = b"second"
    assert tensors.split_bytes(passed_on.as_wire().data) == [b"first"]


def test_read_only_and_unaligned_bytes_become_an_array_that_models_may_write_to() -> None:
    for data in (np.arange(3, dtype=np.int32).tobytes(), memoryview(bytearray(13))[1:]):
        array = Tensor.received(tensors.InferTensor("X", DataType.INT32, (3,), data)).as_numpy()
        array[0] = 9
        assert array.flags.aligned
        assert array[0] == 9


def test_other_layouts_are_written_in_order() -> None:
    transposed = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert Tensor("Y", transposed).as_wire().array().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Tensor("Y", np.array(3.0)).as_wire().shape == ()
    empty = Tensor("Y", np.zeros((0, 3), np.float32)).as_wire()
    assert (empty.shape, bytes(empty.data)) == ((0, 3), b"")


@pytest.mark.parametrize("dtype", [np.int32, object])
def test_a_masked_array_is_refused_where_the_tensor_is_made(dtype: type) -> None:
    masked: Any = np.ma.masked_array(np.array([7, 8], dtype), [False, True])
    with pytest.raises(AttributeError, match=r"Tensor 'Y' is a MaskedArray, .* array\.filled\(value\)"):
        Tensor("Y", masked)
    assert Tensor("Y", masked.filled(0)).as_wire().shape == (2,)
    assert Tensor("Y", np.array([7, 8]).view(np.recarray)).as_wire().array().tolist() == [7, 8]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Tensor("", np.zeros(1)), TritonModelException, "Tensor name cannot be an empty string."),
        (
            lambda: Tensor("x", np.zeros(1, np.complex64)),
            TritonModelException,
            "NumPy dtype is not supported. Tensor 'x' is ",
        ),
        (lambda: Tensor("x", np.array(["a"])), TritonModelException, "NumPy dtype is not supported. Tensor 'x' is "),
        (lambda: Tensor("x", [1, 2]), TypeError, "Invoked with: 'x', [1, 2]"),  # type: ignore[arg-type]  # the point
        (lambda: Tensor(5, np.zeros(1)), TypeError, "Invoked with: 5, array([0.])"),  # type: ignore[arg-type]  # the point
    ],
)
def test_wrong_tensors_are_refused(make: Callable[[], Tensor], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


# -- DLPack


@pytest.mark.parametrize("datatype", PLAIN)
def test_dlpack_both_ways_shares_memory(datatype: DataType) -> None:
    source = Tensor("X", np.array([[0, 1], [1, 1]]).astype(datatype.numpy))
    copy = Tensor.from_dlpack("Y", source.to_dlpack())
    assert (copy.name(), copy.triton_dtype()) == ("Y", datatype.value)
    assert copy.as_wire().array().tolist() == source.as_numpy().tolist()
    source.as_numpy()[0, 0] = 1
    assert copy.as_wire().array()[0, 0] == 1


def test_numpy_reads_our_tensors() -> None:
    source = Tensor("X", np.arange(6, dtype=np.float16).reshape(2, 3))
    assert source.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(source).tolist() == source.as_numpy().tolist()  # type: ignore[arg-type]  # typed for arrays


def test_bf16_is_passed_by_dlpack_only() -> None:
    bits = np.array([0x3F80, 0xC020, 0x7F61], np.uint16)
    source = received(bits, DataType.BF16)
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        source.as_numpy()
    copy = Tensor.from_dlpack("Y", source)
    assert copy.triton_dtype() == DataType.BF16.value
    assert bytes(copy.as_wire().data) == bits.tobytes()


def test_memory_lives_as_long_as_it_is_used() -> None:
    array = np.arange(4)
    alive, capsule = weakref.ref(array), Tensor("X", array).to_dlpack()
    del array
    wire = Tensor.from_dlpack("Y", capsule).as_wire()
    del capsule
    gc.collect()
    assert wire.array().tolist() == [0, 1, 2, 3]
    assert alive() is not None
    del wire
    gc.collect()
    assert alive() is None


def test_an_unused_capsule_is_freed() -> None:
    array = np.arange(4)
    alive, capsule = weakref.ref(array), Tensor("X", array).to_dlpack()
    del array
    assert alive() is not None
    del capsule
    assert alive() is None


def test_capsules_that_outlive_the_interpreter_do_no_harm() -> None:
    program = """
import sys
import numpy as np
from edge_serve.backends.python.api.tensor import Tensor

class Exporter:
    def __init__(self, capsule): self.capsule = capsule
    def __dlpack__(self, **_): return self.capsule
    def __dlpack_device__(self): return 1, 0

sys.kept = [Tensor("X", np.arange(4)).to_dlpack(), np.from_dlpack(Exporter(Tensor("X", np.arange(4)).to_dlpack()))]
sys.kept.append(sys.kept)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


class OnDevice:
    """An array of some device."""

    def __init__(self, device: int) -> None:
        self._device = device

    def __dlpack__(self, stream: object = None) -> object:
        raise AssertionError("not to be asked")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


def used() -> object:
    capsule = Tensor("X", np.arange(4)).to_dlpack()
    Tensor.from_dlpack("Y", capsule)
    return capsule


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (5, "Provided tensor is not supported."),
        (np.zeros((2, 3), np.float32).T, "DLPack tensor is not contiguous."),
        (OnDevice(2), "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is not available."),
        (OnDevice(7), "DLDevice type 7 is not support by Python backend."),
        (used(), "The DLPack capsule has been used already"),
    ],
)
def test_other_objects_are_refused(source: Any, text: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("Y", source)
    assert str(caught.value).startswith(text)


def test_strings_have_no_dlpack() -> None:
    with pytest.raises(TritonModelException, match="DLPack does not have support for string tensors"):
        Tensor("X", np.array([b"a"], object)).to_dlpack()


def test_strided_memory_of_others_is_refused() -> None:
    class Strided:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, stream: object = None) -> object:
            return np.zeros((2, 3), np.float32).T.__dlpack__()

    with pytest.raises(TritonModelException, match="not contiguous"):
        Tensor.from_dlpack("Y", Strided())


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((3, 2, 0), (2, 1, 1)), ((0, 2, 3), (1, 1, 1)), ((2, 1, 3), (3, 9, 1)), ((1, 2, 3), (9, 3, 1))],
)
def test_memory_without_elements_and_dimensions_of_one_have_any_strides(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """PyTorch gives an empty tensor of shape [3, 2, 0] the strides 2, 1, 1."""
    dlpack._check_contiguous(SimpleNamespace(ndim=3, shape=shape, strides=strides), 0)


def test_strides_of_the_first_axis_are_followed_on_the_host() -> None:
    class Rows:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, stream: object = None) -> object:
            return np.arange(6, dtype=np.int32)[::2].__dlpack__()

    tensor = Tensor.from_dlpack("Y", Rows())
    assert np.frombuffer(tensor.as_wire().data, np.int32).tolist() == [0, 2, 4]


def test_numbers_of_types_are_those_of_the_configuration() -> None:
    assert {number: datatype.name for number, datatype in BY_NUMBER.items()}[13] == "BYTES"
    assert received(np.array([b"a"], object)).triton_dtype() == 13
