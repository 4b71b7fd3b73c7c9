"""An `InferResponse` as the bytes of a v2 reply: compact JSON, then the binary outputs in order, not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer, InferTensor, is_unseen
from edge_serve.protocol.inference.classification import classify
from edge_serve.protocol.inference.cost import check_encoding
from edge_serve.protocol.v2 import infer_tensors

Body = tuple[list[Buffer], "int | None"]
_Key = tuple[object, ...]


class InferEncoder:
    """Encodes responses, and remembers the JSON parts of those whose outputs are all binary.

    Args:
        patient: do all work here and now, however long it takes.
    """

    _MAX_HEADERS = 1024

    def __init__(self, *, patient: bool = True) -> None:
        self._patient = patient
        self._headers: dict[_Key, bytes] = {}

    def encode(self, response: InferResponse, request: InferRequest, signature: Signature) -> Body:
        """The buffers of the reply, and the length of the JSON part if binary data follows it.

        Args:
            request: what was asked for: its `outputs` and `binary_default`.
            signature: for labels and the batch dimension.

        Raises:
            InvalidArgument: an output cannot travel in the form that was asked for.
            Internal: an output's bytes do not make up its shape.
            TooMuch: it would take too long, and this encoder is not `patient`.
        """
        outputs = response.outputs
        if not _all_binary(outputs, request):
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
            header = _binary_header(response)
            if len(self._headers) >= self._MAX_HEADERS:
                del self._headers[next(iter(self._headers))]  # the oldest
            self._headers[key] = header
        if response.id or response.parameters:
            header = _with_id(response, header)
        buffers: list[Buffer] = [header]
        buffers += [tensor.data for tensor in outputs if len(tensor.data)]
        return buffers, len(header) if len(buffers) > 1 else None


def _all_binary(outputs: Sequence[InferTensor], request: InferRequest) -> bool:
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
    parts = [_opening(response)]
    data: list[Buffer] = []
    for index, tensor in enumerate(response.outputs):
        output = wanted.get(tensor.name)
        binary = output.binary if output is not None else request.binary_default
        if output is not None and output.classification:
            spec = signature.outputs.get(tensor.name)
            tensor = classify(tensor, output.classification, spec, signature.max_batch_size > 0)
        if index:
            parts.append(b",")
        if is_unseen(tensor.data):  # it lies in the client's memory already
            parts.append(_output(tensor)[:-1] + b"}")
        elif binary:
            parts.append(_binary_output(tensor))
            if len(tensor.data):
                data.append(tensor.data)
        else:
            values = infer_tensors.write(tensor.data, tensor.datatype, tensor.shape, tensor.name)
            parts += (_output(tensor), b'"data":', values, b"}")
    parts.append(b"]}")
    if response.id or response.parameters:
        parts[0] = _with_id(response, parts[0])
    header = b"".join(parts)
    return [header, *data], len(header) if data else None


def _binary_header(response: InferResponse) -> bytes:
    return _opening(response) + b",".join([_binary_output(tensor) for tensor in response.outputs]) + b"]}"


def _opening(response: InferResponse) -> bytes:
    return b'{"model_name":%b,"model_version":%b,"outputs":[' % (
        orjson.dumps(response.model_name),
        orjson.dumps(response.model_version),
    )


def _output(tensor: InferTensor) -> bytes:
    """One entry of `outputs`, up to its data."""
    return b'{"name":%b,"datatype":"%b","shape":[%b],' % (
        orjson.dumps(tensor.name),
        tensor.datatype.name.encode(),
        ",".join(map(str, tensor.shape)).encode(),
    )


def _binary_output(tensor: InferTensor) -> bytes:
    return b'%b"parameters":{"binary_data_size":%d}}' % (_output(tensor), len(tensor.data))


def _with_id(response: InferResponse, text: bytes) -> bytes:
    """The JSON part with what differs from request to request put in front."""
    front = b'{"id":%b,' % orjson.dumps(response.id) if response.id else b"{"
    if response.parameters:
        front += b'"parameters":%b,' % orjson.dumps(response.parameters)
    return front + text[1:]
