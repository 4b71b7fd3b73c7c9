"""CUDA shared memory of clients, as the front end holds it: handles, which a short-lived process tries (ADR 29).

Rules and texts: triton-inference-server/server src/shared_memory_manager.cc. The front end has no CUDA context, so
`try_handle` starts a process that opens the handle once, as the workers that need the memory do later.
"""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

from edge_serve.devices.device import Gpus
from edge_serve.errors import Internal, InvalidArgument, Unsupported, with_advice
from edge_serve.messages.shared_memory import CudaRegionStatus
from edge_serve.workers.launch.interpreter import own_interpreter
from edge_serve.workers.wire.frames import FrameKind

#: bytes of cudaIpcMemHandle_t
HANDLE_BYTES = 64
#: how long the process may take, seconds: it makes a CUDA context
TRY_SECONDS = 30.0

_PROBE = "edge_serve.workers.child.memory.cuda_probe"


class CudaRegion:
    """Memory of a GPU that a client registered. Workers have it open as long as anything refers to it: its entry, or a
    request.
    """

    __slots__ = ("__weakref__", "handle", "status")

    kind = FrameKind.CUDA_REGION
    #: for texts
    word = "CUDA"
    fds: tuple[int, ...] = ()
    start = 0

    def __init__(self, status: CudaRegionStatus, handle: bytes) -> None:
        self.status = status
        self.handle = handle

    def value(self) -> dict[str, Any]:
        """Return the content of the CUDA_REGION frame."""
        status = self.status
        return {"name": status.name, "device": status.device_id, "byte_size": status.byte_size,
                "handle": self.handle.hex()}  # fmt: skip


def check_region(region: CudaRegion, gpus: Gpus) -> None:
    """Check what can be known of a region without CUDA.

    Raises:
        InvalidArgument: there is no GPU, or not this one; the name is missing, the handle has another length than
            CUDA's, or the region is empty. Unsupported: the GPU has no memory of its own to share.
    """
    name, device = region.status.name, region.status.device_id
    if not name:
        raise InvalidArgument("'region name' is necessary to register cuda shared memory region")
    if not gpus.found:
        raise InvalidArgument(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")
    if len(region.handle) != HANDLE_BYTES:
        text = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
        raise InvalidArgument(with_advice(text, f"found {len(region.handle)} bytes, expected {HANDLE_BYTES}"))
    if not region.status.byte_size:
        raise _invalid(name, "byte_size is 0, expected the size of the memory")
    gpu = next((one for one in gpus.found if one.id == device), None)
    if gpu is None:
        ids = ", ".join(str(one.id) for one in gpus.found)
        raise _invalid(name, f"there is no GPU {device}, expected one of: {ids}")
    if gpu.integrated:
        raise Unsupported(
            f"failed to register CUDA shared memory region: '{name}', not supported by GPU {device} ({gpu.name}), "
            "which shares its memory with the CPU and has no CUDA IPC; register system shared memory"
        )


def try_handle(region: CudaRegion) -> None:
    """Open and close the memory in a process of its own. Takes up to TRY_SECONDS: run it in a thread.

    Raises:
        InvalidArgument: the handle does not open, or the memory is smaller. Unsupported: CUDA cannot be used.
        Internal: the process could not be started, or crashed.
    """
    name, interpreter = region.status.name, own_interpreter()
    asked = json.dumps(region.value())  # not an argument: the handle opens the memory for any process
    try:
        done = subprocess.run(
            [*interpreter.command, _PROBE], env=interpreter.variables, input=asked, capture_output=True,
            timeout=TRY_SECONDS, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _failed(name, f"CUDA did not open it within {TRY_SECONDS:g} s") from None
    except OSError as error:
        raise _failed(name, f"the process that opens it cannot be started: {error}") from error
    if done.returncode:
        status = done.returncode
        ending = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise _failed(name, f"the process that opens it {ending}")
    try:
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])  # libraries may print before
    except ValueError:
        raise _failed(name, "the process that opens it did not say whether it could") from None
    if "refused" in answer:
        raise _invalid(name, answer["refused"])
    if "unusable" in answer:
        raise Unsupported(f"failed to register CUDA shared memory region: '{name}', {answer['unusable']}")


def _invalid(name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"failed to register shared memory region '{name}': invalid args; {reason}")


def _failed(name: str, reason: str) -> Internal:
    return Internal(f"failed to register CUDA shared memory region: '{name}', {reason}; see: edge-serve doctor")
