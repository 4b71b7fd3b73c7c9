"""Answers server reflection (grpc doc/server-reflection.md) from the descriptor pool of grpc_service_pb2.

The two versions of the protocol, v1 and v1alpha, differ only in their names.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

from edge_serve.protocol.grpc import grpc_service_pb2
from edge_serve.protocol.grpc.wire import STATUS

_V1, _V1ALPHA = "grpc.reflection.v1", "grpc.reflection.v1alpha"
_FILE, _FILE_V1ALPHA = "grpc_reflection.proto", "grpc_reflection_v1alpha.proto"

#: the services of the gRPC door
SERVICES = (
    "grpc.health.v1.Health",
    f"{_V1}.ServerReflection",
    f"{_V1ALPHA}.ServerReflection",
    "inference.GRPCInferenceService",
)

_pool = grpc_service_pb2.DESCRIPTOR.pool


def _add_v1alpha() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    _pool.FindFileByName(_FILE).CopyToProto(file)
    file.name, file.package = _FILE_V1ALPHA, _V1ALPHA
    for message in file.message_type:
        for field in filter(lambda one: one.type_name, message.field):
            field.type_name = field.type_name.replace(f".{_V1}.", f".{_V1ALPHA}.")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(f".{_V1}.", f".{_V1ALPHA}.")
        method.output_type = method.output_type.replace(f".{_V1}.", f".{_V1ALPHA}.")
    _pool.AddSerializedFile(file.SerializeToString())


_add_v1alpha()
_Request: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_V1}.ServerReflectionRequest"))
_Response: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_V1}.ServerReflectionResponse"))


def answer(data: bytes) -> bytes:
    """Answer a ServerReflectionRequest.

    Raises:
        google.protobuf.message.DecodeError: the bytes are not such a message.
    """
    request = _Request.FromString(data)
    response = _Response(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    try:
        match kind:
            case "list_services":
                for name in SERVICES:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                _describe(response, _pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _describe(response, _pool.FindFileContainingSymbol(request.file_containing_symbol))
            case "all_extension_numbers_of_type":  # proto3 has no extensions
                _pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
            case "file_containing_extension":
                raise KeyError
            case _:
                _refuse(response, "INVALID_ARGUMENT", "a reflection request that asks for nothing known")
    except KeyError:
        asked = getattr(request, kind)
        _refuse(response, "NOT_FOUND", f"there is no {getattr(asked, 'containing_type', asked)}")
    raw: bytes = response.SerializeToString()
    return raw


def _describe(response: Any, file: Any) -> None:
    response.file_descriptor_response.file_descriptor_proto.extend(_serialize(file.name))


@cache
def _serialize(name: str) -> list[bytes]:
    """Return the descriptors of a file and of all files that it imports, the file first."""
    waiting, seen, found = [_pool.FindFileByName(name)], {name}, []
    while waiting:
        current = waiting.pop()
        found.append(current.serialized_pb)
        for other in current.dependencies:
            if other.name not in seen:
                seen.add(other.name)
                waiting.append(other)
    return found


def _refuse(response: Any, code: str, text: str) -> None:
    response.error_response.error_code = STATUS[code]
    response.error_response.error_message = text
