"""The parts of a configuration that say how tensors are copied to a device and back.

They are apart from `tensor_path`, because the front end reads a configuration and copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_serve.records import frozen


@frozen
class PathSettings:
    """The parts of `optimization` that say how tensors are copied.

    Attributes:
        output_stream: `cuda.output_copy_stream`: outputs are copied on a stream of their own, so the next run need not
            wait for them.
        busy_wait: `cuda.busy_wait_events`: the thread that waits for the device polls.
        pinned_input: `input_pinned_memory`: small inputs in ordinary memory are joined in pinned memory.
        pinned_output: `output_pinned_memory`: the reply's slot is registered with the device, and small outputs are
            copied through pinned memory.
        priority: `priority`, of the streams: PRIORITY_MAX, PRIORITY_MIN, or PRIORITY_DEFAULT.
    """

    output_stream: bool = False
    busy_wait: bool = False
    pinned_input: bool = True
    pinned_output: bool = True
    priority: str = "PRIORITY_DEFAULT"

    def stream_priority(self, least: int, greatest: int) -> int:
        """Return the priority of the streams on a device with this range (`CudaApi.stream_priority_range`)."""
        return {"PRIORITY_MAX": greatest, "PRIORITY_MIN": least}.get(self.priority, 0)


def path_settings(optimization: Mapping[str, Any]) -> PathSettings:
    """Return the settings in `optimization` of a configuration."""
    cuda = optimization.get("cuda") or {}
    pinned_in, pinned_out = (
        bool((optimization.get(f"{side}_pinned_memory") or {}).get("enable", True)) for side in ("input", "output")
    )
    priority = str(optimization.get("priority") or "PRIORITY_DEFAULT")
    streams = bool(cuda.get("output_copy_stream")), bool(cuda.get("busy_wait_events"))
    return PathSettings(*streams, pinned_in, pinned_out, priority)
