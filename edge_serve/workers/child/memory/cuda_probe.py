"""Opens a client's memory of a GPU once and closes it again: `python -m edge_serve.workers.child.memory.cuda_probe`.

The front end starts it for each registration (workers/memory/cuda_regions.py), with the region as JSON on stdin. It
opens the memory as a worker does, so what fails for a worker fails at the registration.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from edge_serve.backends.cuda.api import CudaApi, CudaError, load_cuda
from edge_serve.errors import Unavailable


def refusal(cuda: CudaApi, region: dict[str, Any]) -> str:
    """Return why the memory of a CUDA_REGION frame may not be registered; "" = it may."""
    device = region["device"]
    try:
        cuda.set_device(device)
        pointer = cuda.ipc_open(bytes.fromhex(region["handle"]))
        try:
            found = cuda.allocation_size(pointer)
        finally:
            cuda.ipc_close(pointer)
    except CudaError as error:
        return f"{error.message}: does the process that made the memory on GPU {device} run, and is it another one?"
    wanted = region["byte_size"]
    return f"byte_size is {wanted}, but the memory has {found} bytes" if wanted > found else ""


def main() -> None:
    """Print why the region on stdin may not be registered, or why CUDA cannot be used; {} = it may."""
    region = json.load(sys.stdin)
    try:
        reason = refusal(load_cuda(), region)
        answer = {"refused": reason} if reason else {}
    except Unavailable as error:
        answer = {"unusable": error.message}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
