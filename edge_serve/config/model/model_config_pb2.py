"""The message classes of model_config.proto, built at import from its descriptor set.

They live in a descriptor pool of their own: the default pool accepts `inference.ModelConfig` only once, and
`import tritonclient.grpc` in the same process puts its own there. Types for mypy: model_config_pb2.pyi (generated).
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper


def _load() -> None:
    """Bind DESCRIPTOR, each message, each enum and each enum value in this module, as protoc's own code does."""
    raw = Path(__file__).with_name("model_config.binpb").read_bytes()  # importlib.resources takes 2 ms
    pool = descriptor_pool.DescriptorPool()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(raw).file
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindFileByName(file.name)
    names = globals()
    names["DESCRIPTOR"] = descriptor
    for name, message in descriptor.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)


_load()
