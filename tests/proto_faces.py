"""The wire and text format of messages, and whether two copies of them live in one process."""

from __future__ import annotations

import subprocess
import sys

from google.protobuf.descriptor import Descriptor

Face = dict[str, tuple[object, ...]]


def face(message: Descriptor) -> Face:
    """Every field and enum value of a message and of those inside it."""
    found: Face = {}
    for field in message.fields:
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        type_name = getattr(field.message_type or field.enum_type, "full_name", "")
        found[field.full_name] = (field.number, field.type, field.is_repeated, oneof, type_name)
    for enum in message.enum_types:
        found[enum.full_name] = tuple((value.name, value.number) for value in enum.values)
    for nested in message.nested_types:
        found |= face(nested)
    return found


def beside_tritons_client(ours: str, use: str, *, first: bool) -> str:
    """Return the output of a process that imports `ours` and Triton's messages (`service_pb2`), then runs `use`.

    Raises:
        AssertionError: it failed.
    """
    imports = [ours, "from tritonclient.grpc import service_pb2"]
    script = "\n".join([*(imports if first else reversed(imports)), use])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
