"""The coding that an event loop may do at once. `TooExpensive` requests go to a codec process.

The estimates were measured on a small machine and are pessimistic; the loop may be busy for 5 ms at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import DataType, InferTensor, element_count, is_unseen
from edge_serve.records import frozen

#: the loop reads JSON texts, and compressed bodies before and after decompression, of up to this many bytes
SMALL_BYTES = 256 * 1024
#: time for which the loop may encode a JSON part
SMALL_NS = 3_000_000

_FLOATS = {DataType.FP32, DataType.FP64}
_FLOAT_NS, _OTHER_NS, _STRING_NS, _STRING_BYTE_NS, _SORT_NS, _CLASS_NS = 35, 20, 500, 3, 120, 1500


class TooExpensive(Exception):
    """The loop would be busy too long: a codec process has to do the work."""


@frozen
class WorkLimits:
    """Limits beyond which coding raises `TooExpensive`.

    Attributes:
        body: bytes of a JSON text, and of a compressed body before and after decompression.
        text: bytes of a JSON text for a model with BYTES inputs.
        strings: elements of a binary BYTES input.
        deflated: bytes of an answer to compress.
    """

    body: int = 1 << 62
    text: int = 1 << 62
    strings: int = 1 << 62
    deflated: int = 1 << 62


NO_LIMITS = WorkLimits()
#: BYTES in JSON cost four times as much as numbers, and compression about 30 ns for each byte
LOOP_LIMITS = WorkLimits(body=SMALL_BYTES, text=64 * 1024, strings=16 * 1024, deflated=64 * 1024)


def check_json(size: int, signature: Signature, limits: WorkLimits) -> None:
    """Check whether a JSON text of `size` bytes may be read.

    Raises:
        TooExpensive: the text is longer than `limits` allow.
    """
    if size > limits.body:
        raise TooExpensive
    if size > limits.text and any(spec.datatype is DataType.BYTES for spec in signature.inputs.values()):
        raise TooExpensive


def is_long(response: InferResponse) -> bool:
    """Return whether encoding all outputs as JSON takes more than SMALL_NS."""
    return sum(map(_estimate_json_ns, response.outputs)) > SMALL_NS


def check_encoding(response: InferResponse, request: InferRequest, wanted: Mapping[str, RequestedOutput]) -> None:
    """Estimate the cost of the outputs that are encoded as JSON.

    Raises:
        TooExpensive: more than SMALL_NS.
    """
    total = 0
    for tensor in response.outputs:
        output = wanted.get(tensor.name)
        if output is not None and output.classification:
            total += _estimate_classification_ns(tensor, output.classification)
        elif is_unseen(tensor.data):
            continue
        elif not (output.binary if output is not None else request.binary_default):
            total += _estimate_json_ns(tensor)
    if total > SMALL_NS:
        raise TooExpensive


def _estimate_json_ns(tensor: InferTensor) -> int:
    count = element_count(tensor.shape)
    if tensor.datatype is DataType.BYTES:
        return count * _STRING_NS + len(tensor.data) * _STRING_BYTE_NS
    return count * (_FLOAT_NS if tensor.datatype in _FLOATS else _OTHER_NS)


def _estimate_classification_ns(tensor: InferTensor, classes: int) -> int:
    count = element_count(tensor.shape)
    items = tensor.shape[0] if tensor.shape else 1
    return count * _SORT_NS + min(count, classes * items) * _CLASS_NS
