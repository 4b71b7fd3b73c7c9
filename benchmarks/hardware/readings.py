"""Readings of the GPU: the means of the server's metrics, also beside nvidia-smi's.

Energy has no field of nvidia-smi. It is compared with the mean power over the same time.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hardware import models
from benchmarks.hardware.outcome import Skipped
from benchmarks.report import Row
from benchmarks.servers import Server, edge_serve, get

#: metric -> nvidia-smi's field, and how many of the metric's units one of the field's units is
FIELDS = {
    "nv_gpu_memory_used_bytes": ("memory.used", float(1 << 20)),
    "nv_gpu_memory_total_bytes": ("memory.total", float(1 << 20)),
    "nv_gpu_utilization": ("utilization.gpu", 0.01),
    "nv_gpu_power_usage": ("power.draw", 1.0),
    "nv_gpu_power_limit": ("power.limit", 1.0),
}
ENERGY, POWER = "nv_energy_consumption", "nv_gpu_power_usage"
#: seconds of load before the first sample: the driver's own means reach back a second
SETTLE = 2.0
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one moment, by the metric's name: of the server, and of nvidia-smi in the same units."""

    time: float
    ours: Values
    theirs: Values


def of_page(page: str) -> tuple[str, dict[str, float]]:
    """Return the first GPU's UUID and its metrics; "" and nothing where the page has none."""
    pattern = r'^(nv_gpu_\w+|nv_energy_consumption)\{gpu_uuid="([^"]*)"\} (\S+)'
    found = re.findall(pattern, page, re.MULTILINE)
    uuid = found[0][1] if found else ""
    return uuid, {name: float(value) for name, one, value in found if one == uuid}


def means(server: Server, samples: int) -> dict[str, float]:
    """Return the means of the first GPU's metrics, read once a second; nothing that the device does not tell."""
    read = []
    for _ in range(max(1, samples)):
        time.sleep(1.0)
        read.append(of_page(get(server.metrics_port, "/metrics").decode())[1])
    return {name: statistics.mean(one[name] for one in read) for name in read[0] if all(name in one for one in read)}


def beside_nvidia_smi(load: Callable[[Server, str, float], object], name: str, kind: str, seconds: float) -> Row:
    """Compare the metrics with nvidia-smi while a model is under load.

    Args:
        load: sends requests to a model for some seconds.

    Raises:
        Skipped: there is no nvidia-smi, or no metric.
    """
    if shutil.which("nvidia-smi") is None:
        raise Skipped("nvidia-smi is not installed")
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        models.write(Path(folder), name, kind)
        with edge_serve(Path(folder)) as server:
            uuid, _ = of_page(get(server.metrics_port, "/metrics").decode())
            if not uuid:
                raise Skipped("the server exports no metric of a GPU: pip install '.[nvml]'")
            thread = threading.Thread(target=load, args=(server, name, seconds + SETTLE))
            thread.start()
            time.sleep(SETTLE)
            samples = list(_samples(server, uuid, time.monotonic() + seconds))
            thread.join()
    return differences(samples)


def _samples(server: Server, uuid: str, end: float) -> Iterator[Sample]:
    while (now := time.monotonic()) < end:
        theirs = nvidia_smi(uuid)
        yield Sample(now, of_page(get(server.metrics_port, "/metrics").decode())[1], theirs)
        time.sleep(0.2)


def nvidia_smi(uuid: str) -> dict[str, float]:
    """Return what nvidia-smi reports of a GPU, by our metric and in its unit."""
    fields = ",".join(field for field, _ in FIELDS.values())
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    told: dict[str, float] = {}
    for (metric, (_, unit)), text in zip(FIELDS.items(), line.split(", "), strict=True):
        with contextlib.suppress(ValueError):  # [N/A]
            told[metric] = float(text) * unit
    return told


def differences(samples: Sequence[Sample]) -> Row:
    """Return the mean of each metric, and how far it is from nvidia-smi's, as a share; and what only nvidia-smi has."""
    row: Row = {"missing": [name for name in FIELDS if name in samples[0].theirs and name not in samples[0].ours]}
    for metric in FIELDS:
        pairs = [
            (one.ours[metric], one.theirs[metric]) for one in samples if metric in one.ours and metric in one.theirs
        ]
        if pairs:
            ours, theirs = (statistics.mean(side) for side in zip(*pairs, strict=True))
            row |= {metric: ours, f"{metric} off": _share(ours, theirs)}
    first, last = samples[0], samples[-1]
    watts = [one.theirs[POWER] for one in samples if POWER in one.theirs]
    if ENERGY in first.ours and ENERGY in last.ours and watts and last.time > first.time:
        ours = (last.ours[ENERGY] - first.ours[ENERGY]) / (last.time - first.time)
        row |= {f"{ENERGY} W": ours, f"{ENERGY} off": _share(ours, statistics.mean(watts))}
    return row


def _share(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / theirs if theirs else float(ours != theirs)
