"""The message classes of grpc_service.proto, built at import from its descriptor set.

They live in a descriptor pool of their own, as those of config/model/model_config_pb2 do and for the same reason.
Imported only when the gRPC door is opened. Types for mypy: grpc_service_pb2.pyi (generated).
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _load() -> None:
    """Bind DESCRIPTOR, the pool, and each message of the service in this module, as protoc's own code does."""
    raw = Path(__file__).with_name("grpc_service.binpb").read_bytes()  # importlib.resources takes 2 ms
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        pool.AddSerializedFile(file.SerializeToString())
    names = globals()
    names["DESCRIPTOR"] = pool.FindFileByName("grpc_service.proto")
    for message in names["DESCRIPTOR"].message_types_by_name.values():
        names[message.name] = message_factory.GetMessageClass(message)


_load()
