"""NVIDIA's management library (NVML) through the module `pynvml`, in which every value may be unknown.

A board does not support each function. A driver may be older than the package and lack a function, or newer and have
removed one: then `pynvml` raises other errors than its own, or has no such function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")

#: nvmlClocksEventReason... (nvml.h): bit -> reason. Left out are bits of a clock that is as low as it was set, or idle
_THROTTLE_BITS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
THROTTLE_REASONS = tuple(_THROTTLE_BITS.values())

#: nvmlReturn_t (nvml.h) -> what has happened to the device, and what to do
_PROBLEMS = {
    9: "the driver is not loaded: modprobe nvidia, and restart the service",
    15: "the GPU is lost: see dmesg | grep -i nvrm, and restart the machine",
    18: "the driver was replaced while it ran: restart the machine",
}
#: NVML_TEMPERATURE_GPU
_SENSOR = 0
#: nvmlMemory_v2
_MEMORY_V2 = 0x02000028


class Nvml:
    """The calls of NVML. Each returns None where the value is unknown, and none raises.

    Args:
        module: the module `pynvml`, handed in so that tests can stand in for it.

    Raises:
        pynvml.NVMLError: no driver.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._problem = ""
        module.nvmlInit()

    def devices(self) -> list[tuple[Any, str]]:
        """Return the handle and the UUID of each device. One that is lost has no UUID, and is left out."""
        found = []
        for index in range(self._ask(int, ["nvmlDeviceGetCount"]) or 0):
            device = self._ask(_same, ["nvmlDeviceGetHandleByIndex"], index)
            if device is not None and (uuid := self._ask(_text, ["nvmlDeviceGetUUID"], device)) is not None:
                found.append((device, uuid))
        return found

    def memory(self, device: Any) -> tuple[int, int, int] | None:
        """Return total, used, and free bytes. Those that the driver reserves are neither; before R510 they are used."""
        names = ["nvmlDeviceGetMemoryInfo"]
        return self._ask(_memory, names, device, _MEMORY_V2) or self._ask(_memory, names, device)

    def utilization(self, device: Any) -> float | None:
        """Return the share of time in which the device computed, 0 to 1."""
        return self._ask(lambda rates: float(rates.gpu / 100), ["nvmlDeviceGetUtilizationRates"], device)

    def power_usage(self, device: Any) -> float | None:
        """Return watts."""
        return self._ask(_thousandth, ["nvmlDeviceGetPowerUsage"], device)

    def power_limit(self, device: Any) -> float | None:
        """Return watts."""
        return self._ask(_thousandth, ["nvmlDeviceGetPowerManagementLimit"], device)

    def millijoules(self, device: Any) -> int | None:
        """Return the energy that was consumed since the driver was loaded."""
        return self._ask(int, ["nvmlDeviceGetTotalEnergyConsumption"], device)

    def temperature(self, device: Any) -> float | None:
        """Return degrees Celsius."""
        return self._ask(float, ["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"], device, _SENSOR)

    def throttling(self, device: Any) -> tuple[str, ...] | None:
        """Return the reasons for which the clocks are lowered now (`THROTTLE_REASONS`)."""
        names = ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
        return self._ask(_reasons, names, device)

    def processes(self, device: Any) -> dict[int, int] | None:
        """Return pid -> bytes of its memory. In a container a driver may number processes as the host does."""
        return self._ask(_bytes_by_pid, ["nvmlDeviceGetComputeRunningProcesses"], device)

    def take_problem(self) -> str:
        """Return why the driver has not answered for a device since the last call, and what to do; "" = it has."""
        problem, self._problem = self._problem, ""
        return problem

    def _ask(self, read: Callable[[Any], Value], names: list[str], *arguments: Any) -> Value | None:
        """Return the value of the first of these functions that works, as `read` reads it."""
        for name in names:
            try:
                return read(getattr(self._module, name)(*arguments))
            except Exception as error:  # NVMLError; NVMLLibraryMismatchError, AttributeError, ... of other versions
                self._problem = self._problem or _PROBLEMS.get(getattr(error, "value", 0), "")
        return None


def _same(value: Any) -> Any:
    return value


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _thousandth(value: int) -> float:
    return value / 1000


def _memory(info: Any) -> tuple[int, int, int]:
    """Return total, used, and free bytes. `used` is not read: it contains the reserved ones or not, by the driver."""
    total, free, reserved = int(info.total), int(info.free), int(getattr(info, "reserved", 0))
    return total, total - free - reserved, free


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(reason for bit, reason in _THROTTLE_BITS.items() if int(bits) & bit)


def _bytes_by_pid(found: Any) -> dict[int, int]:
    return {int(one.pid): int(one.usedGpuMemory) for one in found if one.usedGpuMemory is not None}
