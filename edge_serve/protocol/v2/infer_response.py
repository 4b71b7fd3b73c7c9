"""Encoder of inference responses: compact JSON, then the binary outputs in order, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from edge_serve.aio.memo import Memo
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer, InferTensor, is_unseen
from edge_serve.protocol.inference.classification import classify
from edge_serve.protocol.inference.cost import check_encoding
from edge_serve.protocol.v2 import infer_tensors

Body = tuple[list[Buffer], "int | None"]
_Key = tuple[object, ...]


class InferEncoder:
    """Encodes responses, with a memo of the JSON parts of responses whose outputs are all binary.

    Args:
        patient: encode every response, however long it takes, and never raise `TooExpensive`.
    """

    _MAX_HEADERS = 1024

    def __init__(self, *, patient: bool = True) -> None:
        self._patient = patient
        self._headers: Memo[_Key, bytes] = Memo(self._MAX_HEADERS)

    def encode(self, response: InferResponse, request: InferRequest, signature: Signature) -> Body:
        """Return the buffers of the reply, and the length of the JSON part if binary data follows it.

        Args:
            request: its `outputs` and `binary_default` define the form of the outputs.
            signature: for labels and the batch dimension.

        Raises:
            InvalidArgument: an output cannot be encoded in the requested form.
            Internal: the bytes of an output do not match its shape.
            TooExpensive: the response has too much JSON, and this encoder is not `patient`.
        """
        outputs = response.outputs
        if not _is_all_binary(outputs, request):
            wanted = {output.name: output for output in request.outputs}
            if not self._patient:
                check_encoding(response, request, wanted)
            return _encode_mixed(response, request, wanted, signature)
        key = (
            response.model_name,
            response.model_version,
            *[(tensor.name, tensor.datatype._value_, tensor.shape, len(tensor.data)) for tensor in outputs],
        )
        header = self._headers.get(key)
        if header is None:
            described = b",".join([_encode_binary_output(tensor) for tensor in outputs])
            header = self._headers.add(key, _encode_opening(response) + described + b"]}")
        if response.id or response.parameters:
            header = _prepend_id(response, header)
        buffers: list[Buffer] = [header]
        buffers += [tensor.data for tensor in outputs if len(tensor.data)]
        return buffers, len(header) if len(buffers) > 1 else None


def _is_all_binary(outputs: Sequence[InferTensor], request: InferRequest) -> bool:
    wanted = request.outputs
    if not wanted:
        return request.binary_default
    names = set()
    for output in wanted:
        if not output.binary or output.classification:
            return False
        names.add(output.name)
    return names.issuperset([tensor.name for tensor in outputs])


def _encode_mixed(
    response: InferResponse, request: InferRequest, wanted: Mapping[str, RequestedOutput], signature: Signature
) -> Body:
    parts = [_encode_opening(response)]
    data: list[Buffer] = []
    for index, tensor in enumerate(response.outputs):
        output = wanted.get(tensor.name)
        binary = output.binary if output is not None else request.binary_default
        if output is not None and output.classification:
            spec = signature.outputs.get(tensor.name)
            tensor = classify(tensor, output.classification, spec, signature.max_batch_size > 0)
        if index:
            parts.append(b",")
        if is_unseen(tensor.data):  # the worker has written it into the client's memory
            parts.append(_encode_output(tensor)[:-1] + b"}")
        elif binary:
            parts.append(_encode_binary_output(tensor))
            if len(tensor.data):
                data.append(tensor.data)
        else:
            values = infer_tensors.write(tensor.data, tensor.datatype, tensor.shape, tensor.name)
            parts += (_encode_output(tensor), b'"data":', values, b"}")
    parts.append(b"]}")
    if response.id or response.parameters:
        parts[0] = _prepend_id(response, parts[0])
    header = b"".join(parts)
    return [header, *data], len(header) if data else None


def _encode_opening(response: InferResponse) -> bytes:
    return b'{"model_name":%b,"model_version":%b,"outputs":[' % (
        orjson.dumps(response.model_name),
        orjson.dumps(response.model_version),
    )


def _encode_output(tensor: InferTensor) -> bytes:
    """Encode an entry of `outputs`, up to its data."""
    return b'{"name":%b,"datatype":"%b","shape":[%b],' % (
        orjson.dumps(tensor.name),
        tensor.datatype.name.encode(),
        ",".join(map(str, tensor.shape)).encode(),
    )


def _encode_binary_output(tensor: InferTensor) -> bytes:
    return b'%b"parameters":{"binary_data_size":%d}}' % (_encode_output(tensor), len(tensor.data))


def _prepend_id(response: InferResponse, text: bytes) -> bytes:
    """Insert `id` and `parameters`, which differ between requests, at the front of the JSON part."""
    front = b'{"id":%b,' % orjson.dumps(response.id) if response.id else b"{"
    if response.parameters:
        front += b'"parameters":%b,' % orjson.dumps(response.parameters)
    return front + text[1:]
