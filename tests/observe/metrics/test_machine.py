"""Temperatures from a tree that looks like /sys."""

from __future__ import annotations

from pathlib import Path

from edge_serve.messages.status import Temperature
from edge_serve.observe.metrics.machine import read_temperatures


def zone(root: Path, number: int, kind: str, value: str) -> None:
    directory = root / f"sys/class/thermal/thermal_zone{number}"
    directory.mkdir(parents=True)
    (directory / "type").write_text(f"{kind}\n")
    (directory / "temp").write_text(value)


def test_zones_are_read_the_hottest_first(tmp_path: Path) -> None:
    zone(tmp_path, 0, "cpu-thermal", "48500\n")
    zone(tmp_path, 1, "gpu-thermal", "51000\n")

    assert read_temperatures(tmp_path) == [Temperature("gpu-thermal", 51.0), Temperature("cpu-thermal", 48.5)]


def test_a_sensor_that_sleeps_or_talks_nonsense_is_left_out(tmp_path: Path) -> None:
    zone(tmp_path, 0, "cpu", "40000")
    zone(tmp_path, 1, "wifi", "")
    zone(tmp_path, 2, "dla", "-256000")
    (tmp_path / "sys/class/thermal/thermal_zone3").mkdir()

    assert read_temperatures(tmp_path) == [Temperature("cpu", 40.0)]


def test_hardware_monitors_stand_in_where_there_are_no_zones(tmp_path: Path) -> None:
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("k10temp")
    (chip / "temp1_input").write_text("61250")
    (chip / "temp1_label").write_text("Tctl")
    (chip / "temp2_input").write_text("60000")

    assert read_temperatures(tmp_path) == [Temperature("k10temp Tctl", 61.25), Temperature("k10temp", 60.0)]


def test_a_machine_without_sensors_has_none(tmp_path: Path) -> None:
    assert read_temperatures(tmp_path) == []
