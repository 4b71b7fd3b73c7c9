"""GPU gauges: NVML through `nvidia-ml-py` where it is installed and finds a driver, Tegra's own files on a Jetson.

Orin's NVML answers NOT_SUPPORTED or garbage, so Tegra's files come first where they exist. Thor has no file of its
load, so NVML is read there, and Tegra's files for the values that NVML lacks. A value that is unknown is None and left
out of the page, never zero. Without a GPU there is nothing to read and nothing to install.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any

from edge_serve.aio.offload import offload
from edge_serve.devices.device import Gpu
from edge_serve.observe.metrics.machine import read_memory, read_text, thermal_zones
from edge_serve.observe.metrics.nvml import Nvml
from edge_serve.records import frozen

log = logging.getLogger(__name__)

#: how long NVML may take to load
FIND_SECONDS = 5.0


@frozen
class GpuReading:
    """One GPU; powers in watts, energy in joules since the server started, temperature in degrees Celsius.

    Attributes:
        memory_used, memory_free: bytes. On a card their sum is below `memory_total` by those that the driver reserves.
        throttling: the reasons for which its clocks are lowered now (`nvml.THROTTLE_REASONS`).
        processes: pid -> bytes of its memory, as far as the driver reports them.
        problem: why the driver does not answer for it any more, and what to do; "" = it answers.
    """

    uuid: str
    utilization: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    power_usage: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    temperature: float | None = None
    throttling: tuple[str, ...] | None = None
    processes: Mapping[int, int] = field(default_factory=dict)
    problem: str = ""


#: returns one reading of each GPU
ReadGpus = Callable[[], list[GpuReading]]


def no_gpus() -> list[GpuReading]:
    """Read the GPUs of a machine without one, or of a server with `--allow-gpu-metrics=false`."""
    return []


def find_gpus(root: Path = Path("/")) -> ReadGpus:
    """Return the reader that fits this machine; `root` stands in for / in tests of the Tegra one."""
    tegra = Tegra.find(root)
    if tegra is not None:
        return tegra.read
    try:
        # pynvml loads it too; importing pynvml takes 14 ms and 6 MiB, which a device without a driver need not spend
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml

        nvml = NvmlGpus(Nvml(pynvml))
    except Exception:  # no package, no driver, or a broken one: a server without GPU gauges is still a server
        return no_gpus
    if not (root / _THOR).exists():
        return nvml.read
    files = Tegra(root, None)
    return lambda: [_completed(reading, files.read()[0]) for reading in nvml.read()]


async def find_gpus_within(seconds: float) -> ReadGpus:
    """Return `find_gpus()`, called in a thread; `no_gpus` if the driver does not answer within `seconds`."""
    finding = asyncio.ensure_future(offload(find_gpus))
    await asyncio.wait({finding}, timeout=seconds)
    if finding.done():
        return finding.result()
    log.warning("the metrics have no GPUs: NVML did not answer within %g s; see: edge-serve doctor", seconds)
    return no_gpus


def seen_by_cuda(read: ReadGpus, found: Callable[[], Sequence[Gpu]]) -> ReadGpus:
    """Return a reader of the GPUs that CUDA programs see, in CUDA's order.

    NVML does not obey CUDA_VISIBLE_DEVICES, and Tegra's files have no UUID. Where CUDA found none of the GPUs that are
    read, or does not answer, all are read: then they show what is wrong.

    Args:
        found: returns the GPUs that CUDA found at the start.
    """
    return lambda: _seen(read(), found())


def _seen(readings: list[GpuReading], found: Sequence[Gpu]) -> list[GpuReading]:
    integrated = [gpu for gpu in found if gpu.integrated]
    if len(readings) == 1 and integrated:
        return [replace(readings[0], uuid=integrated[0].uuid)]
    by_uuid = {reading.uuid: reading for reading in readings}
    return [by_uuid[gpu.uuid] for gpu in found if gpu.uuid in by_uuid] or readings


def _completed(reading: GpuReading, other: GpuReading) -> GpuReading:
    """Return a reading with the unknown values of another one of the same GPU."""
    unknown = [one.name for one in fields(GpuReading) if getattr(reading, one.name) is None]
    return replace(reading, **{name: getattr(other, name) for name in unknown})


class NvmlGpus:
    """The GPUs that NVML finds.

    Args:
        nvml: NVML, loaded.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._devices = [(device, uuid, nvml.millijoules(device)) for device, uuid in nvml.devices()]

    def read(self) -> list[GpuReading]:
        return [self._read_one(*device) for device in self._devices]

    def _read_one(self, device: Any, uuid: str, millijoules_at_start: int | None) -> GpuReading:
        nvml = self._nvml
        nvml.take_problem()  # of another device
        total, used, free = nvml.memory(device) or (None, None, None)
        energy = nvml.millijoules(device)
        return GpuReading(
            uuid,
            utilization=nvml.utilization(device),
            memory_total=total,
            memory_used=used,
            memory_free=free,
            power_usage=nvml.power_usage(device),
            power_limit=nvml.power_limit(device),
            energy=None if energy is None or millijoules_at_start is None else (energy - millijoules_at_start) / 1000,
            temperature=nvml.temperature(device),
            throttling=nvml.throttling(device),
            processes=nvml.processes(device) or {},
            problem=nvml.take_problem(),
        )


#: GPU load in per mille, newest location first (GPU of Orin and Xavier)
_TEGRA_LOADS = (
    "sys/devices/platform/gpu.0/load",
    "sys/devices/gpu.0/load",
    "sys/devices/platform/bus@0/17000000.gpu/load",
)
#: the GPU of Thor (JetPack 7)
_THOR = "sys/class/devfreq/gpu-gpc-0"


class Tegra:
    """An integrated GPU, whose memory is the CPU's."""

    def __init__(self, root: Path, load: Path | None) -> None:
        self._root = root
        self._load = load

    @classmethod
    def find(cls, root: Path) -> Tegra | None:
        """Return the GPU of this machine; None without a load file of Tegra (Thor has none: NVML serves there)."""
        return next((cls(root, root / path) for path in _TEGRA_LOADS if (root / path).exists()), None)

    def read(self) -> list[GpuReading]:
        per_mille = None if self._load is None else _read_int(self._load)
        total, used = read_memory(self._root / "proc")
        zones = thermal_zones(self._root)
        return [
            GpuReading(
                "tegra-0",  # until CUDA has told its UUID (`seen_by_cuda`)
                utilization=None if per_mille is None else per_mille / 1000,
                memory_total=total,
                memory_used=used,
                memory_free=None if total is None or used is None else total - used,
                power_usage=self._power(),
                temperature=next((one.celsius for one in zones if one.name.lower() == "gpu-thermal"), None),
            )
        ]

    def _power(self) -> float | None:
        """Return the watts on the INA3221 rail whose label names the GPU (`VDD_GPU_SOC`, `VDD_CPU_GPU_CV`)."""
        for label in sorted(self._root.glob("sys/class/hwmon/hwmon*/in*_label")):
            if read_text(label.parent / "name") == "ina3221" and "GPU" in read_text(label):
                rail = label.name.removeprefix("in").removesuffix("_label")
                millivolts = _read_int(label.parent / f"in{rail}_input")
                milliamperes = _read_int(label.parent / f"curr{rail}_input")
                if millivolts is not None and milliamperes is not None:
                    return millivolts * milliamperes / 1e6
        return None


def _read_int(path: Path) -> int | None:
    try:
        return int(read_text(path))
    except ValueError:
        return None
