"""Temperatures of this machine: the kernel's thermal zones, or its hardware monitors where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge_serve.messages.status import Temperature

#: sensors that are not there, or asleep, answer with values far outside of this
_PLAUSIBLE = (-60.0, 200.0)


def read_temperatures(root: Path = Path("/")) -> list[Temperature]:
    """Every sensor that answers, the hottest first. `root` stands in for / in tests."""
    found = list(_zones(root)) or list(_monitors(root))
    plausible = [one for one in found if _PLAUSIBLE[0] < one.celsius < _PLAUSIBLE[1]]
    return sorted(plausible, key=lambda one: (-one.celsius, one.name))


def _zones(root: Path) -> Iterator[Temperature]:
    for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        yield from _sensor(_text(zone / "type") or zone.name, zone / "temp")


def _monitors(root: Path) -> Iterator[Temperature]:
    for monitor in sorted(root.glob("sys/class/hwmon/hwmon*")):
        chip = _text(monitor / "name") or monitor.name
        for value in sorted(monitor.glob("temp*_input")):
            label = _text(value.with_name(value.name.replace("_input", "_label")))
            yield from _sensor(f"{chip} {label}".strip(), value)


def _sensor(name: str, value: Path) -> Iterator[Temperature]:
    """Nothing from a sensor that cannot be read now: some are powered down with their device."""
    try:
        yield Temperature(name, int(_text(value)) / 1000)
    except ValueError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
