"""Figures of the machine and of processes for the status document.

Reading them may take a while: not in the event loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from edge_serve import __version__
from edge_serve.devices.device import Gpu
from edge_serve.errors import EdgeServeError
from edge_serve.messages.status import ProcessReading, SystemFacts, Temperature
from edge_serve.models.repository.repository import FoundModel
from edge_serve.observe.metrics.gpu import GpuReading, ReadGpus, find_gpus, no_gpus, seen_by_cuda
from edge_serve.observe.metrics.machine import Machine, MachineReading, read_temperatures
from edge_serve.observe.metrics.updates import Updates, read_updates
from edge_serve.observe.status.device_file import read_system
from edge_serve.records import frozen

#: libraries whose versions are listed if they are installed
_LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "protobuf")
_KIB = 1024

Value = TypeVar("Value", int, float)


@frozen
class Readings:
    """The readings of one probe.

    Attributes:
        load: processes that want to run, averaged over 1, 5 and 15 minutes.
        found: what lies in the repositories; None = they cannot be read.
    """

    machine: MachineReading = field(default_factory=MachineReading)
    cores: int = 0
    load: tuple[float, ...] = ()
    temperatures: tuple[Temperature, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    processes: Mapping[int, ProcessReading] = field(default_factory=dict)
    found: Mapping[str, FoundModel] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    updates: Updates | None = None
    system: SystemFacts | None = None


class Probe:
    """Looks at the machine; one thread at a time.

    Args:
        scan: what lies in the repositories, `Repository.scan`.
        gpu: whether to look for GPUs (`--allow-gpu-metrics`).
        updates: `--ota-status-file`; "" = none.
        system: `--device-status-file`; "" = none.
        root: stands in for / in tests.
        found: returns the GPUs that CUDA found.
    """

    def __init__(
        self,
        scan: Callable[[], Mapping[str, FoundModel]],
        *,
        gpu: bool = True,
        root: Path = Path("/"),
        updates: str = "",
        system: str = "",
        found: Callable[[], Sequence[Gpu]] = tuple,
    ) -> None:
        self._found = found
        self._updates = updates
        self._system = system
        self._scan = scan
        self._gpu = gpu
        self._root = root
        self._read_gpus: ReadGpus | None = None
        self._versions: dict[str, str] = {}
        self._machine = Machine(0, time.monotonic_ns(), root / "proc")  # its first reading counts from here

    def read(self, pids: Iterable[int]) -> Readings:
        """Read all figures of the machine and of the processes `pids`, and scan the repositories. Blocks."""
        found: Mapping[str, FoundModel] | None = None
        with contextlib.suppress(EdgeServeError):
            found = self._scan()
        self._versions = self._versions or library_versions()
        if self._read_gpus is None:
            self._read_gpus = seen_by_cuda(find_gpus(self._root), self._found) if self._gpu else no_gpus
        return Readings(
            machine=self._machine.read(time.monotonic_ns()),
            cores=len(os.sched_getaffinity(0)),
            load=_load_average(),
            temperatures=tuple(read_temperatures(self._root)),
            gpus=tuple(self._read_gpus()),
            processes={pid: read_process(pid, self._root) for pid in pids},
            found=found,
            versions=self._versions,
            updates=read_updates(self._updates, time.time()),
            system=read_system(self._system),
        )


def library_versions() -> dict[str, str]:
    """Return the versions of edge-serve, Python, and the installed libraries that execute models."""
    from importlib import metadata  # costs 2 MB, which a server without a reader of its status does not need

    versions = {"edge-serve": __version__, "python": sys.version.split()[0]}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def read_process(pid: int, root: Path = Path("/")) -> ProcessReading:
    """Return the memory and age of one process; None for a value that cannot be read (the process ended, or belongs to
    another user)."""
    folder = root / "proc" / str(pid)
    pages = _field(folder / "statm", lambda text: int(text.split()[1]))
    return ProcessReading(
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE") if pages is not None else None,
        pss_bytes=_field(folder / "smaps_rollup", _pss),
        uptime_seconds=_age(folder, root),
    )


def _pss(text: str) -> int:
    return next(int(line.split()[1]) * _KIB for line in text.splitlines() if line.startswith("Pss:"))


def _age(folder: Path, root: Path) -> float | None:
    # the name in parentheses may hold anything; `starttime` is field 22, the 20th behind it (proc_pid_stat(5))
    started = _field(folder / "stat", lambda text: int(text.rpartition(")")[2].split()[19]))
    up = _field(root / "proc/uptime", lambda text: float(text.split()[0]))
    if started is None or up is None:
        return None
    return max(0.0, round(up - started / os.sysconf("SC_CLK_TCK"), 2))


def _field(path: Path, read: Callable[[str], Value]) -> Value | None:
    try:
        return read(path.read_text(errors="replace"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _load_average() -> tuple[float, ...]:
    try:
        return tuple(round(value, 2) for value in os.getloadavg())
    except OSError:
        return ()
