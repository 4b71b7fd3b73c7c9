"""The JSON bodies of all v2 operations except inference."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from edge_serve.errors import InvalidArgument, Unparsable
from edge_serve.messages.infer import Parameter
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from edge_serve.messages.shared_memory import RegionStatus
from edge_serve.messages.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.v2 import json_text
from edge_serve.protocol.v2.json_text import as_bool, as_string, as_unsigned, find


def server_metadata(metadata: ServerMetadata) -> bytes:
    """Encode the answer to GET /v2."""
    return orjson.dumps({"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)})


def model_metadata(metadata: ModelMetadata) -> bytes:
    """Encode the answer to GET /v2/models/{m}."""
    return orjson.dumps(
        {
            "name": metadata.name,
            "versions": list(metadata.versions),
            "platform": metadata.platform,
            "inputs": [_tensor(tensor) for tensor in metadata.inputs],
            "outputs": [_tensor(tensor) for tensor in metadata.outputs],
        }
    )


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """Encode the answer to POST /v2/repository/index, without empty fields."""
    return orjson.dumps([_index_entry(entry) for entry in entries])


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {name: value for name, value in fields.items() if value or name == "name"}


def statistics(models: Sequence[tuple[str, str, ModelStatistics]]) -> bytes:
    """Encode the answer to GET .../stats from (name, version, statistics) of each version."""
    return orjson.dumps({"model_stats": [_model_statistics(*model) for model in models]})


#: text around the statistics of the versions, which commas separate
STATISTICS_HEAD, STATISTICS_TAIL = b'{"model_stats":[', b"]}"


def statistics_of_each(models: Iterable[tuple[str, str, ModelStatistics]]) -> Iterator[bytes]:
    """Encode the statistics of each version on its own, for many versions."""
    return (orjson.dumps(_model_statistics(*model)) for model in models)


def _model_statistics(name: str, version: str, of: ModelStatistics) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "last_inference": of.last_inference_ms,
        "inference_count": of.inference_count,
        "execution_count": of.execution_count,
        "inference_stats": {
            "success": _duration(of.success),
            "fail": _duration(of.fail),
            "queue": _duration(of.queue),
            "compute_input": _duration(of.compute_input),
            "compute_infer": _duration(of.compute_infer),
            "compute_output": _duration(of.compute_output),
            "cache_hit": _duration(of.cache_hit),
            "cache_miss": _duration(of.cache_miss),
        },
        "response_stats": {index: _response(response) for index, response in of.responses.items()},
        "batch_stats": [_batch(size, of.batches[size]) for size in sorted(of.batches)],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _batch(size: int, batch: BatchStatistics) -> dict[str, Any]:
    return {
        "batch_size": size,
        "compute_input": _duration(batch.compute_input),
        "compute_infer": _duration(batch.compute_infer),
        "compute_output": _duration(batch.compute_output),
    }


def _response(response: ResponseStatistics) -> dict[str, Any]:
    return {
        "compute_infer": _duration(response.compute_infer),
        "compute_output": _duration(response.compute_output),
        "success": _duration(response.success),
        "fail": _duration(response.fail),
        "empty_response": _duration(response.empty_response),
        "cancel": _duration(response.cancel),
    }


def shared_memory(regions: Iterable[RegionStatus]) -> bytes:
    """Encode the answer to GET /v2/systemsharedmemory/status, for one region or all."""
    return orjson.dumps(
        [{"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size} for one in regions]
    )


def read_shared_memory(body: Buffer) -> tuple[str, int, int]:
    """Return key, offset, and size of a region to register.

    Raises:
        Internal: the body is not JSON, or a member has the wrong type. InvalidArgument: the key or size is missing.
    """
    document = json_text.parse(body) if len(body) else {}
    key, offset, byte_size = (find(document, name) for name in ("key", "offset", "byte_size"))
    if key is None:
        raise InvalidArgument("Shared memory register request has no 'key' field")
    key_text, start = as_string(key), 0 if offset is None else as_unsigned(offset)
    if byte_size is None:
        raise InvalidArgument("Shared memory register request has no 'byte_size' field")
    return key_text, start, as_unsigned(byte_size)


def read_index_request(body: Buffer) -> bool:
    """Return whether the client requests ready models only. An empty body requests all.

    Raises:
        Internal: the body is not JSON, or `ready` is not a boolean.
    """
    if not len(body):
        return False
    ready = find(json_text.parse(body), "ready")
    return False if ready is None else as_bool(ready)


def read_load_request(body: Buffer) -> dict[str, Parameter | bytes]:
    """Return the load parameters: `config` as text and `file:<path>` as bytes. An empty body has none.

    Raises:
        Internal: the body is not JSON, or has an unknown parameter. InvalidArgument: a file is not base64.
    """
    read: dict[str, Parameter | bytes] = {}
    for name, value in _find_parameters(body).items():
        text = as_string(value)
        if name == "config":
            read[name] = text
        elif name.startswith("file:"):
            read[name] = _decode_file(name, text)
        else:
            raise Unparsable("unexpected error on creating Triton parameter")
    return read


def _decode_file(name: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise InvalidArgument(f"load parameter '{name}' is not base64: {wrong}") from wrong


def read_unload_request(body: Buffer) -> bool:
    """Return the parameter `unload_dependents`.

    Raises:
        Internal: the body is not JSON, or the parameter is not a boolean.
    """
    value = find(find(json_text.parse(body), "parameters"), "unload_dependents") if len(body) else None
    return False if value is None else as_bool(value, "Unable to parse 'unload_dependents': ")


def _find_parameters(body: Buffer) -> dict[str, Any]:
    parameters = find(json_text.parse(body), "parameters") if len(body) else None
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise Unparsable("attempt to get members for non-object")
    return parameters
