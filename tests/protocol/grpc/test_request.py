"""ModelInferRequest messages into requests: parameters, typed contents, outputs, and Triton's texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unsupported
from edge_serve.messages.shared_memory import NamedRegions, Place
from edge_serve.messages.tensors import BY_NAME, DataType, Shared
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferRequest
from edge_serve.protocol.grpc.request import read
from edge_serve.workers.memory.regions import SharedMemoryRegions

NO_REGIONS = SharedMemoryRegions()


def typed(datatype: str, field: str, values: list[object], shape: list[int] | None = None) -> ModelInferRequest:
    made = ModelInferRequest(model_name="m")
    one = made.inputs.add(name="X", datatype=datatype, shape=shape or [len(values)])
    getattr(one.contents, field).extend(values)
    return made


def both(datatype: str, first: str, second: str) -> ModelInferRequest:
    made = typed(datatype, first, [b"" if first == "bytes_contents" else 1])
    getattr(made.inputs[0].contents, second).append(b"" if second == "bytes_contents" else 1)
    return made


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]), ("INT8", "int_contents", [-1, 127]),
        ("INT16", "int_contents", [-2, 3]), ("INT32", "int_contents", [-(2**31), 5]),
        ("INT64", "int64_contents", [-(2**63), 7]), ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [1, 65535]), ("UINT32", "uint_contents", [2**32 - 1]),
        ("UINT64", "uint64_contents", [2**64 - 1]), ("FP32", "fp32_contents", [0.5, -2.0]),
        ("FP64", "fp64_contents", [0.1]), ("BYTES", "bytes_contents", [b"a", b"", b"\xff"]),
    ],
)  # fmt: skip
def test_typed_contents_become_the_bytes_of_their_type(datatype: str, field: str, values: list[object]) -> None:
    request, _ = read(typed(datatype, field, values), [], NO_REGIONS)
    (tensor,) = request.inputs

    assert tensor.datatype is BY_NAME[datatype]
    assert tensor.array().tolist() == values
    if tensor.datatype is not DataType.BYTES:
        assert len(tensor.data) == len(values) * np.dtype(tensor.datatype.numpy).itemsize


@pytest.mark.parametrize(
    ("made", "raw", "text"),
    [
        (typed("FP32", "int_contents", [1]), [], "of type 'INT32', expected datatype 'FP32'"),
        (both("BYTES", "bytes_contents", "int_contents"), [], "of type 'INT32', expected datatype 'BYTES'"),
        (both("INT32", "int_contents", "bool_contents"), [], "of type 'BOOL', expected datatype 'INT32'"),
        (both("INT32", "int_contents", "bytes_contents"), [], "binary data was already supplied"),
        (typed("FP16", "fp32_contents", [1]), [], "of type 'FP32', expected datatype 'FP16'"),
        (typed("INT32", "int_contents", [1]), [b"1234"], "contents field must not be specified when using raw_input"),
        (ModelInferRequest(inputs=[{"name": "X", "datatype": "INT32"}]), [], "unable to find data for input tensor"),
        (ModelInferRequest(inputs=[{"name": "X", "datatype": "WHAT"}]), [b""], "invalid datatype for input X"),
        (ModelInferRequest(), [b""], "expected 0 entries of raw_input_contents"),
        (ModelInferRequest(inputs=[{"name": "X", "shape": [1] * 300}]), [b""], "300 dimensions, expected at most 255"),
        (
            ModelInferRequest(inputs=[{"name": "X", "datatype": "BOOL"}] * 2),
            [b"", b""],
            "input 'X' already exists in request",
        ),
    ],
)
def test_contents_that_do_not_fit_are_refused(made: ModelInferRequest, raw: list[bytes], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        read(made, raw, NO_REGIONS)


def _with(name: str, field: str, value: object) -> ModelInferRequest:
    made = ModelInferRequest(model_name="m")
    setattr(made.parameters[name], field, value)
    return made


def test_parameters_that_are_tritons_own_are_understood() -> None:
    made = _with("sequence_id", "int64_param", 9)
    made.parameters["sequence_start"].bool_param = True
    made.parameters["sequence_end"].bool_param = True
    made.parameters["priority"].uint64_param = 3
    made.parameters["timeout"].int64_param = 7
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    made.parameters["mine"].double_param = 0.5
    request, wants_final = read(made, [], NO_REGIONS)

    assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == (9, 3, 3, 7)
    assert wants_final
    assert request.parameters == {"mine": 0.5}


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (_with("sequence_id", "bool_param", True), InvalidArgument, "expected int64_param or string_param."),
        (_with("sequence_id", "string_param", "x" * 129), Unsupported, "cannot be longer than 128 characters"),
        (
            _with("sequence_start", "int64_param", 1),
            InvalidArgument,
            "'sequence_start' parameter, expected bool_param.",
        ),
        (_with("priority", "int64_param", -1), InvalidArgument, "invalid value for 'priority', expected value >= 0."),
        (_with("timeout", "string_param", "1"), InvalidArgument, "'timeout' parameter, expected int64_param."),
        (_with("triton_x", "int64_param", 1), InvalidArgument, "reserved for Triton usage"),
        (_with("x", "uint64_param", 1), InvalidArgument, "expected int64_param, bool_param, or string_param."),
    ],
)
def test_parameters_of_another_type_are_refused(
    made: ModelInferRequest, error: type[EdgeServeError], text: str
) -> None:
    with pytest.raises(error, match=text):
        read(made, [], NO_REGIONS)


def _output(change: Callable[[ModelInferRequest.InferRequestedOutputTensor], None]) -> ModelInferRequest:
    made = ModelInferRequest()
    change(made.outputs.add(name="Y"))
    return made


def test_outputs_are_binary_and_may_ask_for_classes() -> None:
    def classes(output: ModelInferRequest.InferRequestedOutputTensor) -> None:
        output.parameters["classification"].int64_param = 2

    request, _ = read(_output(classes), [], NO_REGIONS)

    (output,) = request.outputs
    assert (output.name, output.binary, output.classification) == ("Y", True, 2)


def test_classes_that_are_no_number_are_refused() -> None:
    def classes(output: ModelInferRequest.InferRequestedOutputTensor) -> None:
        output.parameters["classification"].string_param = "2"

    with pytest.raises(
        InvalidArgument, match="invalid value type for 'classification' parameter, expected int64_param"
    ):
        read(_output(classes), [], NO_REGIONS)


def _named(offset: int = 0, size: int = 8) -> ModelInferRequest:
    made = ModelInferRequest()
    for parameters in (
        made.inputs.add(name="X", datatype="INT32", shape=[2]).parameters, made.outputs.add(name="Y").parameters
    ):  # fmt: skip
        parameters["shared_memory_region"].string_param = "r"
        parameters["shared_memory_offset"].int64_param = offset
        parameters["shared_memory_byte_size"].int64_param = size
    return made


def test_an_unregistered_region_is_not_found() -> None:
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        read(_named(), [], NO_REGIONS)


def test_inputs_and_outputs_may_lie_in_a_region() -> None:
    request, _ = read(_named(4, 8), [], NamedRegions())

    assert request.shared
    (tensor,) = request.inputs
    assert isinstance(tensor, Shared)
    assert (tensor.region, tensor.place, len(tensor.data)) == ("r", 4, 8)
    assert request.outputs[0].place == Place("r", 4, 8, "Y")


def test_a_place_before_its_region_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="invalid value for 'shared_memory_offset', expected value >= 0"):
        read(_named(-1), [], NamedRegions())


@pytest.mark.parametrize("name", ["shared_memory_offset", "shared_memory_byte_size"])
@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_a_place_without_a_region_is_refused(field: str, name: str) -> None:
    made = _named()
    tensor = getattr(made, field)[0]
    del tensor.parameters["shared_memory_region"]
    del tensor.parameters[{"shared_memory_offset", "shared_memory_byte_size"}.difference([name]).pop()]

    text = f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
    with pytest.raises(InvalidArgument) as refusal:
        read(made, [], NamedRegions())
    assert refusal.value.message == text


def test_a_size_of_a_wrong_type_names_its_tensor() -> None:
    made = _named()
    made.inputs[0].parameters["shared_memory_byte_size"].bool_param = True

    text = "invalid value type for 'shared_memory_byte_size' parameter for tensor 'X', expected int64_param."
    with pytest.raises(InvalidArgument) as refusal:
        read(made, [], NamedRegions())
    assert refusal.value.message == text
