"""Codec of inference: decodes requests (JSON, JSON with binary tensors after it, or raw bytes), and encodes responses.

The hot path is a client that sends the same JSON part with other tensor bytes. The parsed and validated JSON part is
kept as a template, so that the next request with it costs a dictionary look-up and a few slices. A response is compact
JSON, then the binary outputs in order, without a copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from edge_serve.aio.memo import Memo
from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput, copy_request
from edge_serve.messages.shared_memory import Regions
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, Shape, element_count, is_unseen
from edge_serve.protocol.inference.classification import classify
from edge_serve.protocol.inference.cost import NO_LIMITS, TooExpensive, WorkLimits, check_encoding, check_json
from edge_serve.protocol.inference.validate import check_correlation_id, check_strings, validate
from edge_serve.protocol.v2 import infer_header, infer_tensors, json_text
from edge_serve.protocol.v2.infer_header import Split, split
from edge_serve.records import slotted

#: Triton's default for --http-max-input-size
MAX_INPUT_SIZE = 64 * 1024 * 1024

_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")


def parse_header_length(text: str | None, content_length: int) -> int | None:
    """Parse `Inference-Header-Content-Length`: None without the header; 0 means a raw request.

    Like C's `stoi`, it reads digits up to the first character that is not one.

    Raises:
        InvalidArgument: not a number, or larger than the body.
    """
    if text is None:
        return None
    digits = text
    if not text.isdecimal():
        found = _INTEGER.match(text)
        if found is None:
            raise InvalidArgument(f"Unable to parse Inference-Header-Content-Length, got: {text}")
        digits = found[1]
    length = int(digits) if len(digits) < 20 else -1
    if not 0 <= length <= content_length:
        raise InvalidArgument(f"inference header size should be in range (0, {content_length}), got: {text}")
    return length


@slotted
class _TemplateInput:
    """An input of a template.

    Attributes:
        start, end: position of the data, from the end of the JSON part.
        elements: number of BYTES elements, which every request is checked for; -1 for other types.
    """

    name: str
    datatype: DataType
    shape: Shape
    start: int
    end: int
    elements: int


@slotted
class _Template:
    """A parsed and validated JSON part, for the request that it came with and for later ones.

    Attributes:
        size: bytes after the JSON part.
        request: the other fields of a request.
    """

    size: int
    inputs: list[_TemplateInput]
    request: InferRequest


class InferDecoder:
    """Decodes request bodies, with templates for the JSON parts that clients repeat.

    Args:
        max_input_size: --http-max-input-size, bytes of a JSON part, of a tensor in JSON, or of a raw body.
        work: limits beyond which decoding raises `TooExpensive`.
        regions: shared memory that requests may name; None = none.
    """

    _MAX_TEMPLATES = 1024
    _MAX_TEMPLATE_SIZE = 4096

    def __init__(
        self, max_input_size: int = MAX_INPUT_SIZE, work: WorkLimits = NO_LIMITS, regions: Regions | None = None
    ) -> None:
        self.max_input_size = max_input_size
        self._regions = regions
        self._work = work
        self._templates: Memo[tuple[Signature, bytes], _Template] = Memo(self._MAX_TEMPLATES)
        #: templates of texts that are common to requests with other `id` and `parameters`; None = seen once
        self._common: Memo[tuple[Signature, bytes], _Template | None] = Memo(self._MAX_TEMPLATES)

    def decode(
        self,
        signature: Signature,
        version: str,
        body: Buffer,
        length: int | None,
        *,
        offset: int = -1,
        forwarded: Mapping[str, str] | None = None,
    ) -> InferRequest:
        """Decode and validate a request. Its binary tensors are views of `body`.

        Args:
            version: as in the URL, "" for the highest.
            length: of the JSON part (`parse_header_length`); None if the body is JSON only.
            offset: start of `body` in the model's tensor arena; -1 in ordinary memory.
            forwarded: headers that become parameters (`infer_header.read_forwarded`).

        Raises:
            EdgeServeError: with Triton's text and status.
            TooExpensive: beyond the limits `work`; nothing has been done.
        """
        view = body if isinstance(body, memoryview) else memoryview(body)
        if length:
            key = (signature, bytes(view[:length]))
            template = self._templates.get(key)
            if template is not None and template.size == len(view) - length:
                request = _fill(template, view, length, offset, self._work.strings)
            else:
                request = self._decode_header(signature, key[1], view, offset)
        elif length is None:
            request = self._decode_json(signature, view)
        else:
            request = self._decode_raw(signature, view, offset)
        request.model_version = version
        if forwarded:
            request.parameters.update(forwarded)
        return request

    def _decode_json(self, signature: Signature, view: memoryview) -> InferRequest:
        if not view:
            raise InvalidArgument(
                "the request body is empty, expected a JSON inference request, or raw bytes with the header "
                "'Inference-Header-Content-Length: 0'"
            )
        self._check_json_size(len(view), signature)
        tail = infer_header.Tail(view, len(view), -1)
        request = self._read(json_text.parse(view), tail, signature)
        validate(request, signature)
        return request

    def _decode_header(self, signature: Signature, text: bytes, view: memoryview, offset: int) -> InferRequest:
        self._check_json_size(len(text), signature)
        cut = split(text) if len(text) <= self._MAX_TEMPLATE_SIZE else None
        if cut is not None:
            template = self._common.get((signature, cut.common))
            if template is not None and template.size == len(view) - len(text):
                return self._decode_own(signature, cut, template, view, len(text), offset)
        tail = infer_header.Tail(view, len(text), offset)
        request = self._read(json_text.parse(text), tail, signature)
        if len(view) > 4 * self._work.strings:  # each element has at least its length of 4 bytes
            strings = sum(element_count(one.shape) for one in request.inputs if one.datatype is DataType.BYTES)
            if strings > self._work.strings:
                raise TooExpensive
        validate(request, signature)
        if len(text) <= self._MAX_TEMPLATE_SIZE and (-1, -1) not in tail.spans and not request.shared:
            template = _make_template(request, tail, len(text))
            self._templates.add((signature, text), template)
            if cut is not None:
                key = signature, cut.common
                again = key in self._common and cut.is_clean()
                self._common.add(key, template if again else None)
        return request

    def _decode_own(
        self, signature: Signature, cut: Split, known: _Template, view: memoryview, length: int, offset: int
    ) -> InferRequest:
        """Decode a request whose inputs and outputs are those of an earlier one."""
        own = InferRequest(signature.model_name)
        infer_header.read_own(cut.own, own)
        check_correlation_id(own, signature)
        own.outputs, own.rows, own.validated = known.request.outputs, known.request.rows, signature
        whole = _Template(known.size, known.inputs, own)
        request = _fill(whole, view, length, offset, self._work.strings)
        self._templates.add((signature, bytes(view[:length])), whole)
        return request

    def _read(self, document: Any, tail: infer_header.Tail, signature: Signature) -> InferRequest:
        return infer_header.read(document, tail, signature.model_name, self.max_input_size, self._regions)

    def _check_json_size(self, size: int, signature: Signature) -> None:
        if size > self.max_input_size:
            raise refuse_json_size(size, self.max_input_size)
        check_json(size, signature, self._work)

    def _decode_raw(self, signature: Signature, view: memoryview, offset: int) -> InferRequest:
        if len(view) > self.max_input_size:
            raise InvalidArgument(
                f"Raw input has a byte_size ({len(view)} bytes) that exceeds the maximum allowed value of "
                f"{self.max_input_size} bytes. Use --http-max-input-size to increase the limit."
            )
        request = InferRequest(signature.model_name, binary_default=True)
        request.inputs.append(infer_header.make_raw_input(signature, view, offset))
        validate(request, signature)
        return request


def refuse_json_size(size: int, limit: int) -> InvalidArgument:
    """Return the error for a JSON text above --http-max-input-size."""
    return InvalidArgument(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _make_template(request: InferRequest, tail: infer_header.Tail, length: int) -> _Template:
    inputs = []
    for tensor, (start, end) in zip(request.inputs, tail.spans, strict=True):
        strings = element_count(tensor.shape) if tensor.datatype is DataType.BYTES else -1
        place = start - length, end - length
        inputs.append(_TemplateInput(tensor.name, tensor.datatype, tensor.shape, *place, strings))
    return _Template(len(tail.body) - length, inputs, copy_request(request, request.id, []))


def _fill(template: _Template, view: memoryview, length: int, offset: int, most_strings: int) -> InferRequest:
    one, tensors = template.request, []
    for known in template.inputs:
        start = length + known.start
        data = view[start : length + known.end]
        if known.elements >= 0:
            if known.elements > most_strings:
                raise TooExpensive
            check_strings(data, known.elements, known.name, one.model_name, one.id)
        at = -1 if offset < 0 else offset + start
        tensors.append(InferTensor(known.name, known.datatype, known.shape, data, at))
    return copy_request(one, one.id, tensors)


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
            header = _add_id(response, header)
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
        parts[0] = _add_id(response, parts[0])
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


def _add_id(response: InferResponse, text: bytes) -> bytes:
    """Insert `id` at the front of the JSON part and `parameters` before its outputs. They differ between requests."""
    if response.parameters:
        outputs = b',"outputs":'  # no name can hold its quotes
        text = text.replace(outputs, b',"parameters":%b%b' % (orjson.dumps(response.parameters), outputs), 1)
    return b'{"id":%b,%b' % (orjson.dumps(response.id), text[1:]) if response.id else text
