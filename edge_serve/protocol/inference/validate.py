"""Checks of a request against the model's signature, with Triton's texts (core src/infer_request.cc,
`InferenceRequest::Normalize`).

Every door and the in-process API use it. `validate` marks a checked request (`InferRequest.validated`), so that
`Service.infer` checks only requests that no codec has checked against the same signature.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import (
    Buffer,
    DataType,
    InferTensor,
    Shape,
    element_count,
    is_unseen,
    same_shape,
    shape_text,
)

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_LENGTH = struct.Struct("<I")
#: bytes of a correlation ID
MAX_CORRELATION_ID = 128
#: more dimensions than any tensor has; multiplying a million of them would take hours
MAX_RANK = 255
#: bytes of an array; NumPy counts those of an empty one without its dimensions of zero
_MAX_BYTES = 2**63 - 1


def prefix(request_id: str) -> str:
    """Return the beginning of Triton's messages about one request."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def check_datatype(datatype: DataType | None, name: str) -> DataType:
    """Return the datatype of an input; None = no datatype has the client's name for it.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if datatype is None:
        raise InvalidArgument(f"invalid datatype for input {name}")
    return datatype


def check_id_length(correlation_id: str) -> str:
    """Return a correlation ID.

    Raises:
        Unsupported: it is too long; with Triton's text.
    """
    if len(correlation_id.encode()) > MAX_CORRELATION_ID:
        raise Unsupported(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID} characters")
    return correlation_id


def validate(request: InferRequest, signature: Signature) -> int:
    """Check `request`, and return its batch size (1 if the model has no batch dimension).

    Sets `request.rows` and `request.validated`. Shapes stay the client's: models/run/reshape.py applies `reshape`.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if request.validated is signature:
        return request.rows
    for output in request.outputs:
        if output.name not in signature.outputs:
            raise InvalidArgument(f"unexpected inference output '{output.name}' for model '{signature.model_name}'")
    _check_input_count(request, signature)
    rows = _check_batch_size(request, signature)
    for tensor in reversed(request.inputs):
        _check_input(request, tensor, signature)
    check_correlation_id(request, signature)
    request.rows = rows
    request.validated = signature
    return rows


def _check_input_count(request: InferRequest, signature: Signature) -> None:
    names = [tensor.name for tensor in request.inputs]
    if len(set(names)) != len(names):
        again = next(name for name, times in Counter(names).items() if times > 1)
        raise InvalidArgument(f"{prefix(request.id)}input '{again}' already exists in request")
    most, least = len(signature.inputs), signature.required
    if least <= len(names) <= most:
        return
    missing = [spec.name for spec in signature.inputs.values() if not spec.optional and spec.name not in names]
    wanted = (
        f"expected {most} inputs but" if least == most else f"expected number of inputs between {least} and {most} but"
    )
    raise InvalidArgument(
        f"{prefix(request.id)}{wanted} got {len(names)} inputs for model '{signature.model_name}'. "
        f"Got input(s) {_quoted(reversed(names))}, but missing required input(s) {_quoted(missing)}. "
        "Please provide all required input(s)."
    )


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _find_spec(tensor: InferTensor, signature: Signature) -> TensorSpec:
    spec = signature.inputs.get(tensor.name)
    if spec is None:
        raise InvalidArgument(f"unexpected inference input '{tensor.name}' for model '{signature.model_name}'")
    return spec


def _check_batch_size(request: InferRequest, signature: Signature) -> int:
    if signature.max_batch_size == 0:
        return 1
    rows = -1
    for tensor in reversed(request.inputs):  # the order in which Triton's hash map mostly returns them
        if _find_spec(tensor, signature).is_shape_tensor:
            continue
        if not tensor.shape:
            raise InvalidArgument(
                f"{prefix(request.id)}input '{tensor.name}' has no shape but model requires batch dimension for "
                f"'{signature.model_name}'"
            )
        if tensor.shape[0] < 0:
            raise _wrong_shape(request, tensor, signature, _find_spec(tensor, signature))
        if rows < 0:
            rows = tensor.shape[0]
        elif tensor.shape[0] != rows:
            raise InvalidArgument(
                f"{prefix(request.id)}input '{tensor.name}' batch size does not match other inputs for "
                f"'{signature.model_name}'"
            )
    if rows > signature.max_batch_size:
        raise InvalidArgument(
            f"{prefix(request.id)}inference request batch-size must be <= {signature.max_batch_size} for "
            f"'{signature.model_name}'"
        )
    return 1 if rows < 0 else rows


def _check_input(request: InferRequest, tensor: InferTensor, signature: Signature) -> None:
    spec = _find_spec(tensor, signature)
    if tensor.datatype is not spec.datatype:
        raise InvalidArgument(
            f"{prefix(request.id)}inference input '{tensor.name}' data-type is '{tensor.datatype.name}', but model "
            f"'{signature.model_name}' expects '{spec.datatype.name}'"
        )
    batched = signature.max_batch_size > 0 and not spec.is_shape_tensor
    dims = tensor.shape[1:] if batched else tensor.shape
    if (dims != spec.dims or -1 in dims) and not _fits(dims, spec.dims):
        raise _wrong_shape(request, tensor, signature, spec)
    if batched and not tensor.shape[0]:  # Triton compares with the bytes of one row, which an empty batch lacks
        check_size(tensor, dims, signature.model_name, request.id)
    check_size(tensor, tensor.shape, signature.model_name, request.id)


def _fits(dims: Shape, expected: Shape) -> bool:
    if len(dims) != len(expected):
        return False
    return all(dim >= 0 and want in (-1, dim) for dim, want in zip(dims, expected, strict=True))


def _wrong_shape(request: InferRequest, tensor: InferTensor, signature: Signature, spec: TensorSpec) -> InvalidArgument:
    name, model, shape = tensor.name, signature.model_name, tensor.shape
    batches = signature.max_batch_size > 0 and not spec.is_shape_tensor
    expected = (-1, *spec.dims) if batches else spec.dims
    if same_shape(shape, expected):
        return InvalidArgument(
            f"{prefix(request.id)}All input dimensions should be specified for input '{name}' for model '{model}', "
            f"got {shape_text(shape)}"
        )
    return InvalidArgument(
        f"{prefix(request.id)}unexpected shape for input '{name}' for model '{model}'. Expected "
        f"{shape_text(expected)}, got {shape_text(shape)}. {_BATCH_NOTE if batches else ''}"
    )


def check_size(tensor: InferTensor, shape: Shape, model: str, request_id: str) -> None:
    """Check that the bytes match `shape`; BYTES elements are checked one by one.

    Raises:
        InvalidArgument: with Triton's text.
    """
    count = element_count(shape)
    if not count:
        _check_empty(tensor, model, request_id)
    if tensor.datatype is DataType.BYTES:
        if is_unseen(tensor.data):  # the worker checks each element
            if 4 * count > len(tensor.data):
                raise InvalidArgument(
                    f"{prefix(request_id)}expected {count} string elements for inference input '{tensor.name}' for "
                    f"model '{model}', got {len(tensor.data)} bytes, which do not even hold their lengths"
                )
            return
        check_strings(tensor.data, count, tensor.name, model, request_id)
    elif len(tensor.data) != count * tensor.datatype.size:
        raise InvalidArgument(
            f"{prefix(request_id)}input byte size mismatch for input '{tensor.name}' for model '{model}'. Expected "
            f"{count * tensor.datatype.size}, got {len(tensor.data)}"
        )


def _check_empty(tensor: InferTensor, model: str, request_id: str) -> None:
    """Check that an empty tensor can be an array: no bytes tell how large the dimensions beside a zero may be."""
    others = element_count([dim for dim in tensor.shape if dim])
    if others * (tensor.datatype.size or 8) > _MAX_BYTES:  # BYTES become pointers
        raise InvalidArgument(
            f"{prefix(request_id)}shape {shape_text(tensor.shape)} of input '{tensor.name}' for model '{model}' is too "
            f"large for an empty tensor: its other dimensions must make up at most {_MAX_BYTES} bytes"
        )


#: from this many elements on, a check with NumPy for equal lengths is worth its cost
_MANY = 32


def check_strings(data: Buffer, count: int, name: str, model: str, request_id: str) -> None:
    """Check that `data` has `count` BYTES elements: a 4-byte little-endian length and that many bytes each.

    Raises:
        InvalidArgument: with Triton's text.
    """
    end = len(data)
    if count >= _MANY and end % count == 0 and _equally_long(data, count, end // count):
        return
    position = found = 0
    unpack = _LENGTH.unpack_from
    while position < end:
        if end - position < 4:
            raise InvalidArgument(
                f"{prefix(request_id)}incomplete string length indicator for inference input '{name}' for model "
                f"'{model}', expecting 4 bytes but only {end - position} bytes available. Please make sure the string "
                "length indicator is in one buffer."
            )
        found += 1
        if found > count:
            raise InvalidArgument(
                f"{prefix(request_id)}unexpected number of string elements {found} for inference input '{name}' for "
                f"model '{model}', expecting {count}"
            )
        length = unpack(data, position)[0]
        position += 4 + length
        if position > end and found == count:
            raise InvalidArgument(
                f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
                f"{end - position + length} bytes available"
            )
    if found != count:
        raise InvalidArgument(
            f"{prefix(request_id)}expected {count} string elements for inference input '{name}' for model '{model}', "
            f"got {found}"
        )


def _equally_long(data: Buffer, count: int, stride: int) -> bool:
    if stride < 4:
        return False
    import numpy as np

    lengths = np.frombuffer(data, dtype=np.uint8).reshape(count, stride)[:, :4]
    return bool((np.ascontiguousarray(lengths).view("<u4") == stride - 4).all())


_INTEGER_IDS = {DataType.UINT64, DataType.INT64, DataType.UINT32, DataType.INT32}


def check_correlation_id(request: InferRequest, signature: Signature) -> None:
    """Check that a correlation ID has the type of the model's CORRID control.

    Raises:
        InvalidArgument: with Triton's text.
    """
    expected = signature.correlation_id_type
    if expected is None or not signature.has_sequence_batching or request.correlation_id == "":
        return  # the scheduler refuses a request without one
    if isinstance(request.correlation_id, str):
        found = None if expected is DataType.BYTES else "BYTES"
    else:
        found = None if expected in _INTEGER_IDS else "UINT64"
    if found is not None:
        raise InvalidArgument(
            f"{prefix(request.id)}sequence batching control 'CORRID' data-type is '{found}', but model "
            f"'{signature.model_name}' expects '{expected.name}'"
        )
