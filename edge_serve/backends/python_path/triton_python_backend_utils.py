"""`import triton_python_backend_utils as pb_utils`: what Python models are written with.

Names and meaning: triton-inference-server/python_backend src/resources/triton_python_backend_utils.py.
"""

import json as json
import struct as struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_serve.backends.python.api.advice import get_model_dir as get_model_dir
from edge_serve.backends.python.api.advice import note_missing as _note_missing
from edge_serve.backends.python.api.config import ModelConfig as ModelConfig
from edge_serve.backends.python.api.errors import TritonError as TritonError
from edge_serve.backends.python.api.errors import TritonModelException as TritonModelException
from edge_serve.backends.python.api.logger import Logger as Logger
from edge_serve.backends.python.api.metrics import MetricFamily as MetricFamily
from edge_serve.backends.python.api.repository import is_model_ready as is_model_ready
from edge_serve.backends.python.api.repository import load_model as load_model
from edge_serve.backends.python.api.repository import unload_model as unload_model
from edge_serve.backends.python.api.request import REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE, MemoryType
from edge_serve.backends.python.api.request import InferenceRequest as InferenceRequest
from edge_serve.backends.python.api.request import PreferredMemory as PreferredMemory
from edge_serve.backends.python.api.response import InferenceResponse as InferenceResponse
from edge_serve.backends.python.api.sender import RESPONSE_COMPLETE_FINAL
from edge_serve.backends.python.api.tensor import Tensor as Tensor
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START
from edge_serve.messages.tensors import BY_CONFIG_NAME, BY_NUMBER, DataType, join_bytes

TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = SEQUENCE_END
TRITONSERVER_RESPONSE_COMPLETE_FINAL = RESPONSE_COMPLETE_FINAL
TRITONSERVER_REQUEST_RELEASE_ALL = REQUEST_RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = REQUEST_RELEASE_RESCHEDULE

#: config.pbtxt name -> NumPy scalar type (BF16 has none)
TRITON_STRING_TO_NUMPY: dict[str, type[Any]] = {
    name: bool if datatype is DataType.BOOL else datatype.numpy.type
    for name, datatype in BY_CONFIG_NAME.items()
    if datatype is not DataType.BF16
}


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """The NumPy type of `TYPE_FP32` and so on; KeyError for others and TYPE_BF16."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type[Any] | None:
    """The NumPy type of Triton's number, None for BF16 and others."""
    datatype = BY_NUMBER.get(data_type)
    return None if datatype in (None, DataType.BF16) else BY_NUMBER[data_type].numpy.type


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """Triton's number of a NumPy type, None if it has none."""
    if data_type in (np.object_, np.bytes_):
        return DataType.BYTES.value
    return None if data_type is None else next((n for n in BY_NUMBER if triton_to_numpy_type(n) == data_type), None)


def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None:
    """The elements, each behind its length in 4 bytes; () for no elements, None for other types."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return join_bytes(input_tensor.ravel(order="C").tolist(), any_type=True)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> npt.NDArray[np.object_]:
    """The reverse, as a flat array of bytes; struct.error if the data ends too soon."""
    elements: list[bytes] = []
    offset = 0
    while offset < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, offset)
        elements += struct.unpack_from(f"<{length}s", encoded_tensor, offset + 4)
        offset += 4 + length
    return np.array(elements, dtype=np.object_)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor._name == name:
            return tensor
    _note_missing("input", name, [tensor._name for tensor in inference_request.inputs()])
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor._name == name:
            return tensor
    _note_missing("output", name, [tensor._name for tensor in inference_response.output_tensors()])
    return None


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The input's part of the configuration, or None."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The output's part of the configuration, or None."""
    return _by_name(model_config.get("output", ()), name)


def _by_name(tensors: Any, name: str) -> dict[str, Any] | None:
    return next((tensor for tensor in tensors if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the model may send any number of responses."""
    policy = model_config.get("model_transaction_policy")
    return bool(policy and policy["decoupled"])
