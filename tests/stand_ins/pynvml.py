"""A stand-in for `pynvml` (nvidia-ml-py) with the calls that edge_serve/observe/metrics/gpu.py makes.

STAND_IN_NVML names a JSON file, which is read at each call, so a test changes the boards while a server runs:
`{"init": 18, "boards": [{"uuid": "GPU-a0...", "error": 15, "memory": [total, used], "load": 42, ...}]}`.
A value that a board lacks is NOT_SUPPORTED. `init` and `error` are values of nvmlReturn_t that calls fail with;
`"lost": {"handle": 15}` or `{"uuid": 15}` has that of the calls that find a board.
"""

# ruff: noqa: N802 (the names of the genuine module)
from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
_NOT_SUPPORTED = 3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def _document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ["STAND_IN_NVML"]).read_text())
    return found


def _value(handle: int, name: str) -> Any:
    board = _document()["boards"][handle]
    if "error" in board:
        raise NVMLError(board["error"])
    if name not in board:
        raise NVMLError(_NOT_SUPPORTED)
    return board[name]


def nvmlInit() -> None:
    if code := _document().get("init"):
        raise NVMLError(code)


def nvmlDeviceGetCount() -> int:
    return len(_document()["boards"])


def _fail_if_lost(handle: int, call: str) -> None:
    if code := _document()["boards"][handle].get("lost", {}).get(call):
        raise NVMLError(code)


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    _fail_if_lost(index, "handle")
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    _fail_if_lost(handle, "uuid")
    uuid: str = _document()["boards"][handle]["uuid"]
    return uuid


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    total, used = _value(handle, "memory")
    return SimpleNamespace(total=total, used=used, free=total - used, reserved=0)


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=_value(handle, "load"), memory=0)


def nvmlDeviceGetPowerUsage(handle: int) -> Any:
    return _value(handle, "milliwatts")


def nvmlDeviceGetPowerManagementLimit(handle: int) -> Any:
    return _value(handle, "limit_milliwatts")


def nvmlDeviceGetTotalEnergyConsumption(handle: int) -> Any:
    return _value(handle, "millijoules")


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> Any:
    return _value(handle, "celsius")


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> Any:
    return _value(handle, "clock_reasons")


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
    found = _value(handle, "processes")
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=nbytes) for pid, nbytes in found.items()]
