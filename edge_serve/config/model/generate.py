"""`python -m edge_serve.config.model.generate`: write model_config.binpb and its .pyi from model_config.proto.

For developers; needs grpcio-tools. A test fails when the files are older than the .proto.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edge_serve.protoc import protoc

ROOM = Path(__file__).parent
PROTO = "model_config.proto"
GENERATED = ("model_config.binpb", "model_config_pb2.pyi")


def generate(target: Path) -> None:
    """Write the GENERATED files into `target`.

    Raises:
        RuntimeError: protoc refused the .proto; it has printed why.
    """
    files = protoc("edge_serve.config.model.generate", (PROTO,), GENERATED, (ROOM,))
    for name, data in zip(GENERATED, files, strict=True):
        (target / name).write_bytes(data)


if __name__ == "__main__":
    generate(ROOM)
    sys.stdout.write("".join(f"{ROOM / name}\n" for name in GENERATED))
