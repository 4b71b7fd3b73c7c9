"""The readings of GPUs: boards as NVML answers for them (tests/stand_ins/pynvml.py), and Tegra's files.

No board was at hand: what each answers follows NVIDIA's documentation and reports of users, and was not recorded.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_serve.devices.device import Gpu
from edge_serve.observe.metrics import gpu
from edge_serve.observe.metrics.gpu import (
    FIND_SECONDS,
    GpuReading,
    NvmlGpus,
    ReadGpus,
    Tegra,
    find_gpus,
    find_gpus_within,
    no_gpus,
    seen_by_cuda,
)
from edge_serve.observe.metrics.nvml import Nvml
from tests.stand_ins import pynvml

#: a desktop card; one of an older driver, without energy, reasons and processes; Thor, whose memory is the machine's
DESKTOP: dict[str, Any] = {
    "uuid": "GPU-8ec7", "memory": [8 << 30, 1 << 30], "load": 42, "milliwatts": 61_500, "limit_milliwatts": 120_000,
    "millijoules": 5_000, "celsius": 71, "clock_reasons": 0x24, "processes": {"41": 300 << 20, "42": None},
}  # fmt: skip
OLD: dict[str, Any] = {"uuid": "GPU-0ld", "memory": [80, 8], "load": 3}
THOR: dict[str, Any] = {"uuid": "GPU-7h0r", "load": 12, "milliwatts": 9_000}


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that describes the boards."""
    path = tmp_path / "nvml.json"
    monkeypatch.setenv("STAND_IN_NVML", str(path))
    return path


def describe(path: Path, *boards: dict[str, Any], **more: Any) -> None:
    path.write_text(json.dumps({"boards": boards, **more}))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_desktop_card_is_read_with_its_energy_since_the_start(boards: Path) -> None:
    describe(boards, DESKTOP)
    gpus = NvmlGpus(Nvml(pynvml))
    describe(boards, {**DESKTOP, "millijoules": 7_500})

    assert gpus.read() == [
        GpuReading(
            "GPU-8ec7", 0.42, 8 << 30, 1 << 30, 7 << 30, 61.5, 120.0, 2.5, 71.0, ("sw_power_cap", "sw_thermal"),
            {41: 300 << 20},
        )
    ]  # fmt: skip


def test_value_that_a_board_does_not_report_is_unknown(boards: Path) -> None:
    describe(boards, OLD, DESKTOP)

    old, other = NvmlGpus(Nvml(pynvml)).read()

    assert old == GpuReading("GPU-0ld", utilization=0.03, memory_total=80, memory_used=8, memory_free=72)
    assert old.throttling is None
    assert other.power_limit == 120.0


def test_package_without_the_newer_calls_is_read_too(boards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(boards, DESKTOP)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetComputeRunningProcesses")

    (gpu,) = NvmlGpus(Nvml(pynvml)).read()

    assert (gpu.throttling, gpu.processes, gpu.temperature) == (None, {}, 71.0)


@pytest.mark.parametrize(
    ("code", "text"), [(15, "the GPU is lost"), (18, "the driver was replaced"), (9, "the driver is not loaded")]
)
def test_vanished_device_is_reported_with_advice_and_without_values(boards: Path, code: int, text: str) -> None:
    describe(boards, DESKTOP)
    gpus = NvmlGpus(Nvml(pynvml))
    describe(boards, {**DESKTOP, "error": code})

    (gpu,) = gpus.read()

    assert gpu.problem.startswith(text)
    assert "restart the" in gpu.problem
    assert (gpu.utilization, gpu.memory_used, gpu.temperature) == (None, None, None)
    describe(boards, DESKTOP)
    assert gpus.read()[0].problem == ""


@pytest.mark.parametrize("call", ["handle", "uuid"])
def test_card_that_is_lost_at_the_start_hides_no_other(boards: Path, call: str) -> None:
    describe(boards, {**OLD, "lost": {call: 15}}, DESKTOP)

    assert [gpu.uuid for gpu in NvmlGpus(Nvml(pynvml)).read()] == ["GPU-8ec7"]


def test_without_the_library_of_a_driver_pynvml_is_not_imported(
    tmp_path: Path, boards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package has pynvml, and most devices have no such GPU."""
    libraries: list[str] = []
    describe(boards, OLD)
    monkeypatch.setattr(ctypes, "CDLL", libraries.append)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    assert [gpu.uuid for gpu in find_gpus(tmp_path)()] == ["GPU-0ld"]

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_gpus(tmp_path) is no_gpus
    assert libraries == ["libnvidia-ml.so.1"]


@pytest.mark.parametrize("code", [9, 12, 18])
def test_without_a_driver_or_the_package_there_is_no_gpu(
    code: int, tmp_path: Path, boards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    describe(boards, init=code)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    assert find_gpus(tmp_path) is no_gpus
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpus(tmp_path)() == []


def test_thor_fills_what_nvml_lacks_from_files(tmp_path: Path, boards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    describe(boards, THOR)
    (tmp_path / "sys/class/devfreq/gpu-gpc-0").mkdir(parents=True)
    write(tmp_path / "sys/class/thermal/thermal_zone3/type", "gpu-thermal")
    write(tmp_path / "sys/class/thermal/thermal_zone3/temp", "51500")
    write(tmp_path / "proc/meminfo", "MemTotal: 128000 kB\nMemAvailable: 100000 kB")

    (gpu,) = find_gpus(tmp_path)()

    assert (gpu.uuid, gpu.utilization, gpu.power_usage) == ("GPU-7h0r", 0.12, 9.0)
    assert (gpu.memory_total, gpu.memory_used, gpu.temperature) == (128_000 << 10, 28_000 << 10, 51.5)
    assert (gpu.energy, gpu.power_limit, gpu.throttling) == (None, None, None)


def test_orin_reads_its_files_although_nvml_is_there(tmp_path: Path) -> None:
    write(tmp_path / "sys/devices/platform/gpu.0/load", "347")
    write(tmp_path / "sys/class/thermal/thermal_zone0/type", "cpu-thermal")
    write(tmp_path / "sys/class/thermal/thermal_zone0/temp", "99000")
    write(tmp_path / "sys/class/thermal/thermal_zone1/type", "gpu-thermal")
    write(tmp_path / "sys/class/thermal/thermal_zone1/temp", "48500")
    monitor = tmp_path / "sys/class/hwmon/hwmon2"
    for name, text in {
        "name": "ina3221", "in1_label": "VDD_CPU_CV", "in1_input": "19000", "curr1_input": "900",
        "in2_label": "VDD_GPU_SOC", "in2_input": "20000", "curr2_input": "150",
    }.items():  # fmt: skip
        write(monitor / name, text)
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB")

    assert Tegra.find(tmp_path) is not None
    (gpu,) = find_gpus(tmp_path)()
    assert (gpu.utilization, gpu.temperature, gpu.power_usage) == (0.347, 48.5, 3.0)
    assert (gpu.memory_total, gpu.memory_used) == (1024_000, 614_400)
    assert (gpu.energy, gpu.power_limit) == (None, None)


def card(number: int, uuid: str, *, integrated: bool = False) -> Gpu:
    return Gpu(number, "a card", uuid, (8, 7), 1 << 30, integrated)


def test_readings_are_those_of_the_gpus_that_cuda_sees_in_its_order() -> None:
    readings = [GpuReading("GPU-a"), GpuReading("GPU-b"), GpuReading("GPU-c")]

    def uuids(*found: Gpu) -> list[str]:
        return [reading.uuid for reading in seen_by_cuda(lambda: readings, lambda: found)()]

    assert uuids(card(0, "GPU-c"), card(1, "GPU-a")) == ["GPU-c", "GPU-a"]
    assert uuids() == ["GPU-a", "GPU-b", "GPU-c"], "CUDA found none, or does not answer"
    assert uuids(card(0, "MIG-a")) == ["GPU-a", "GPU-b", "GPU-c"], "a part of a card is none of them"


def test_gpu_of_a_jetson_has_the_uuid_that_models_have(tmp_path: Path) -> None:
    write(tmp_path / "sys/devices/gpu.0/load", "500")
    read, found = find_gpus(tmp_path), [card(0, "GPU-0r1n", integrated=True)]

    assert seen_by_cuda(read, lambda: found)() == [replace(read()[0], uuid="GPU-0r1n")]
    assert read()[0].uuid == seen_by_cuda(read, list)()[0].uuid == "tegra-0"


def test_tegra_with_only_a_load_file_leaves_the_rest_out(tmp_path: Path) -> None:
    write(tmp_path / "sys/devices/gpu.0/load", "garbage")
    (gpu,) = find_gpus(tmp_path)()
    assert (gpu.utilization, gpu.temperature, gpu.power_usage, gpu.memory_total) == (None, None, None, None)


def test_driver_that_hangs_does_not_keep_the_doors_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def hangs() -> ReadGpus:
        answers.wait(20)
        return no_gpus

    monkeypatch.setattr(gpu, "find_gpus", hangs)
    try:
        assert asyncio.run(find_gpus_within(0.01)) is no_gpus
    finally:
        answers.set()
    assert "NVML did not answer within 0.01 s" in caplog.text


def test_gpus_are_read_by_the_reader_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> list[GpuReading]:
        return []

    monkeypatch.setattr(gpu, "find_gpus", lambda: read)
    assert asyncio.run(find_gpus_within(FIND_SECONDS)) is read
