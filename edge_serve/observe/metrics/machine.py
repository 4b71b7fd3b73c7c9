"""Gauges of the whole machine.

CPU and memory come from /proc (the fields that Triton's src/metrics.cc takes), temperatures from the kernel's thermal
zones, or from its hardware monitors where there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge_serve.messages.status import Temperature
from edge_serve.records import frozen

#: sensors that are not there, or asleep, answer with values far outside of this
_PLAUSIBLE = (-60.0, 200.0)


@frozen
class MachineReading:
    """None: could not be read, so the family is left out."""

    cpu_utilization: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None


class Machine:
    """Reads at scrape time, at most once per interval.

    Args:
        interval_ns: how old a reading may be; CPU utilization is the average since the reading before.
        proc: stands in for /proc in tests.
    """

    def __init__(self, interval_ns: int, now_ns: int, proc: Path = Path("/proc")) -> None:
        self._interval_ns = interval_ns
        self._proc = proc
        self._busy, self._total = self._cpu_ticks() or (0, 0)
        self._read_ns = now_ns
        self._reading: MachineReading | None = None

    def read(self, now_ns: int) -> MachineReading:
        """Return the gauges as of now, or the last reading if that is younger than the interval."""
        if self._reading is None or now_ns - self._read_ns >= self._interval_ns:
            self._reading = MachineReading(self._cpu_utilization(), *read_memory(self._proc))
            self._read_ns = now_ns
        return self._reading

    def _cpu_utilization(self) -> float | None:
        ticks = self._cpu_ticks()
        if ticks is None:
            return None
        busy, total = ticks[0] - self._busy, ticks[1] - self._total
        self._busy, self._total = ticks
        return max(0.0, busy / total) if total > 0 else 0.0

    def _cpu_ticks(self) -> tuple[int, int] | None:
        """Return the (busy, all) ticks of all CPUs since boot; idle and iowait are not busy, guest time is within user
        time."""
        try:
            with (self._proc / "stat").open() as file:
                name, *fields = file.readline().split()
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
        except (OSError, ValueError):
            return None
        busy = user + nice + system + irq + softirq + steal
        return (busy, busy + idle + iowait) if name == "cpu" else None


def read_memory(proc: Path) -> tuple[int | None, int | None]:
    """Return the (total, used) bytes of RAM; used is all that is not available. (None, None) if /proc/meminfo lacks
    them."""
    found: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0]) * 1024
        return found["MemTotal"], found["MemTotal"] - found["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return None, None


def read_temperatures(root: Path) -> list[Temperature]:
    """Return the temperature of every sensor that answers, the hottest first. `root` stands in for / in tests."""
    found = list(thermal_zones(root)) or list(_monitors(root))
    plausible = [one for one in found if _PLAUSIBLE[0] < one.celsius < _PLAUSIBLE[1]]
    return sorted(plausible, key=lambda one: (-one.celsius, one.name))


def thermal_zones(root: Path) -> Iterator[Temperature]:
    """Read the kernel's thermal zones that answer."""
    for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        yield from _sensor(read_text(zone / "type") or zone.name, zone / "temp")


def _monitors(root: Path) -> Iterator[Temperature]:
    for monitor in sorted(root.glob("sys/class/hwmon/hwmon*")):
        chip = read_text(monitor / "name") or monitor.name
        for value in sorted(monitor.glob("temp*_input")):
            label = read_text(value.with_name(value.name.replace("_input", "_label")))
            yield from _sensor(f"{chip} {label}".strip(), value)


def _sensor(name: str, value: Path) -> Iterator[Temperature]:
    """Yield the temperature of a sensor; none if it cannot be read now, because some are powered down with their
    device."""
    try:
        yield Temperature(name, int(read_text(value)) / 1000)
    except ValueError:
        return


def read_text(path: Path) -> str:
    """Return the text of a file of the kernel, without the white space around it; "" when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
