"""Messages of every call other than inference: converts values into messages, and messages into values
(server src/grpc/grpc_server.cc)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.messages.infer import Parameter
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata
from edge_serve.messages.settings import LOG_FORMATS, LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.shared_memory import CudaRegionStatus, RegionStatus
from edge_serve.messages.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from edge_serve.protocol.v2 import bodies as json_bodies

_RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def build_server_metadata(metadata: ServerMetadata) -> pb.ServerMetadataResponse:
    """Build the reply of ServerMetadata."""
    return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)


def build_model_metadata(metadata: ModelMetadata) -> pb.ModelMetadataResponse:
    """Build the reply of ModelMetadata."""
    message = pb.ModelMetadataResponse(name=metadata.name, versions=metadata.versions, platform=metadata.platform)
    for tensor in metadata.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for tensor in metadata.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return message


def build_repository_index(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """Build the reply of RepositoryIndex."""
    message = pb.RepositoryIndexResponse()
    for entry in entries:
        message.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return message


# ---- statistics -------------------------------------------------------------------------------------------------


def build_statistics(models: Sequence[tuple[str, str, ModelStatistics]]) -> pb.ModelStatisticsResponse:
    """Build the reply of ModelStatistics from (name, version, statistics) of each version."""
    message = pb.ModelStatisticsResponse()
    for name, version, of in models:
        one = message.model_stats.add(
            name=name,
            version=version,
            last_inference=of.last_inference_ms,
            inference_count=of.inference_count,
            execution_count=of.execution_count,
        )
        _fill(one.inference_stats, of, json_bodies.DURATIONS)
        for size in sorted(of.batches):
            _fill(one.batch_stats.add(batch_size=size), of.batches[size], json_bodies.BATCH_DURATIONS)
        for index, response in of.responses.items():
            _fill(one.response_stats[index], response, _RESPONSE_DURATIONS)
    return message


def _fill(message: Any, of: ModelStatistics | BatchStatistics | ResponseStatistics, names: Iterable[str]) -> None:
    """Copy the durations, also those that are zero."""
    for name in names:
        duration: Duration = getattr(of, name)
        field = getattr(message, name)
        field.SetInParent()
        field.count, field.ns = duration.count, duration.ns


# ---- the repository ---------------------------------------------------------------------------------------------


def read_load_parameters(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, Parameter | bytes]:
    """Read the parameters of RepositoryModelLoad: `config` as text, and `file:<path>` as bytes.

    Raises:
        InvalidArgument: another parameter, or another type.
    """
    read: dict[str, Parameter | bytes] = {}
    for name, value in parameters.items():
        kind = "string_param" if name == "config" else "bytes_param"
        if name != "config" and not name.startswith("file:"):
            raise InvalidArgument(f"unrecognized load parameter '{name}'.")
        if value.WhichOneof("parameter_choice") != kind:
            raise InvalidArgument(f"invalid value type for load parameter '{name}', expected {kind}.")
        read[name] = getattr(value, kind)
    return read


def read_unload_dependents(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
    """Read the parameter `unload_dependents` of RepositoryModelUnload.

    Raises:
        InvalidArgument: it is not a boolean.
    """
    if "unload_dependents" not in parameters:
        return False
    value = parameters["unload_dependents"]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgument("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return value.bool_param


def build_shared_memory(regions: Iterable[RegionStatus]) -> pb.SystemSharedMemoryStatusResponse:
    """Build the reply of SystemSharedMemoryStatus."""
    message = pb.SystemSharedMemoryStatusResponse()
    for region in regions:
        entry = message.regions[region.name]
        entry.name, entry.key = region.name, region.key
        entry.offset, entry.byte_size = region.offset, region.byte_size
    return message


def build_cuda_shared_memory(regions: Iterable[CudaRegionStatus]) -> pb.CudaSharedMemoryStatusResponse:
    """Build the reply of CudaSharedMemoryStatus."""
    message = pb.CudaSharedMemoryStatusResponse()
    for region in regions:
        entry = message.regions[region.name]
        entry.name, entry.device_id, entry.byte_size = region.name, region.device_id, region.byte_size
    return message


# ---- settings ---------------------------------------------------------------------------------------------------


def build_trace_settings(settings: TraceSettings) -> pb.TraceSettingResponse:
    """Build the reply of TraceSetting: the values of the HTTP reply, each as a list of strings."""
    message = pb.TraceSettingResponse()
    for name, value in orjson.loads(json_bodies.trace_settings(settings)).items():
        message.settings[name].value.extend(value if isinstance(value, list) else [value])
    return message


def read_trace_changes(settings: Mapping[str, pb.TraceSettingRequest.SettingValue]) -> TraceChanges:
    """Read the changes of a TraceSetting; an empty list clears a field.

    Raises:
        Unsupported: `trace_file`. InvalidArgument: an invalid value.
    """
    document: dict[str, Any] = {}
    for name, setting in settings.items():
        values = list(setting.value)
        if name == "trace_level" and values:
            document[name] = values
        elif len(values) > 1 and name != "trace_file":  # which is refused as such
            raise InvalidArgument(f"expect only 1 value for '{name}'")
        else:
            document[name] = values[0] if values else None
    return json_bodies.read_trace_changes(orjson.dumps(document))


#: setting -> (the field of its value, its type in error messages)
_LOG_KINDS = {
    "log_info": ("bool_param", "boolean"), "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"), "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}  # fmt: skip


def build_log_settings(settings: LogSettings) -> pb.LogSettingsResponse:
    """Build the reply of LogSettings."""
    message = pb.LogSettingsResponse()
    for name, value in orjson.loads(json_bodies.log_settings(settings)).items():
        setattr(message.settings[name], _LOG_KINDS.get(name, ("string_param", ""))[0], value)
    return message


def read_log_settings(settings: Mapping[str, pb.LogSettingsRequest.SettingValue], current: LogSettings) -> LogSettings:
    """Read the settings of a LogSettings request; unknown settings are ignored, as in Triton.

    Raises:
        Unsupported: `log_file`. InvalidArgument: a value of another type, or no such `log_format`.
    """
    if "log_file" in settings:
        raise Unsupported("log file location can not be updated through network protocol")
    document: dict[str, Any] = {}
    for name, (field, word) in _LOG_KINDS.items():
        if name not in settings:
            continue
        value = settings[name]
        if value.WhichOneof("parameter_choice") != field:
            raise InvalidArgument(f"expect {word} for '{name}'")
        document[name] = getattr(value, field)
    if document.get("log_format", LOG_FORMATS[0]) not in LOG_FORMATS:
        raise InvalidArgument(f"invalid argument for log_format, got: {document['log_format']}")
    return json_bodies.read_log_settings(orjson.dumps(document), current)
