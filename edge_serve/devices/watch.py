"""Finds out why GPUs that were there at the start are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from edge_serve.aio.offload import offload
from edge_serve.devices.device import Gpus
from edge_serve.devices.find import find_devices
from edge_serve.errors import with_advice


class DeviceWatch:
    """Compares the GPUs that the driver finds now with those at the start.

    Args:
        find: asks the driver; called in a thread, by one caller at a time.

    Attributes:
        at_start: the GPUs that models were placed on.
    """

    def __init__(self, find: Callable[[], Gpus] = find_devices) -> None:
        self.at_start = Gpus()
        self._find = find
        self._asking = asyncio.Lock()

    async def start(self) -> Gpus:
        """Find the GPUs for the first time."""
        self.at_start = await offload(self._find)
        return self.at_start

    async def trouble(self, ids: Collection[int]) -> str:
        """Return why the driver does not find some of these GPUs under the same number any more; "" = it does."""
        async with self._asking:
            try:
                now = await offload(self._find)
            except OSError as error:  # no thread or no process can be started now
                return f"the CUDA driver could not be asked: {error}"
        if not now.found:
            return with_advice(now.reason or "no CUDA driver is there any more", now.advice or "see: edge-serve doctor")
        lost = [gpu for gpu in self.at_start.found if gpu.id in ids and now.uuid(gpu.id) != gpu.uuid]
        if not lost:
            return ""
        names = ", ".join(f"GPU {gpu.id} ({gpu.name}, {gpu.uuid})" for gpu in lost)
        return with_advice(
            f"{names} is lost: the CUDA driver finds {len(now.found)} of {len(self.at_start.found)} GPUs",
            "compare with nvidia-smi -L, see dmesg | grep -i nvrm, and restart the machine",
        )
