"""`python -m edge_serve.protocol.grpc.generate`: writes grpc_service.binpb and its .pyi from the .proto.

For developers; needs grpcio-tools. A test fails when the files are older than the .proto. The descriptor set contains
model_config.proto from config/model/, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edge_serve.protoc import protoc

ROOM = Path(__file__).parent
PROTOS = ("grpc_service.proto", "grpc_health.proto", "grpc_reflection.proto")
GENERATED = ("grpc_service.binpb", "grpc_service_pb2.pyi")


def generate(target: Path) -> None:
    """Write the GENERATED files into `target`.

    Raises:
        RuntimeError: protoc refused a .proto; it has printed why.
    """
    rooms = (ROOM, ROOM.parents[1] / "config/model")
    descriptors, stub = protoc("edge_serve.protocol.grpc.generate", PROTOS, GENERATED, rooms)
    (target / GENERATED[0]).write_bytes(descriptors)
    stub = stub.replace(b"import model_config_pb2", b"from edge_serve.config.model import model_config_pb2")
    (target / GENERATED[1]).write_bytes(stub)


if __name__ == "__main__":
    generate(ROOM)
    sys.stdout.write("".join(f"{ROOM / name}\n" for name in GENERATED))
