"""Options, text, machine and GPU readers, and the docs page."""

from __future__ import annotations

import ctypes
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.observe.metrics.catalogue import CATALOGUE
from edge_serve.observe.metrics.exposition import number, quantile_of
from edge_serve.observe.metrics.gpu import Nvml, Tegra, find_gpus, no_gpus
from edge_serve.observe.metrics.machine import Machine
from edge_serve.observe.metrics.options import DEFAULT_QUANTILES, parse_options


def test_names_are_unique_and_counters_of_ours_end_in_total() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    ours = [m for m in CATALOGUE if m.name.startswith("edge_serve_") and m.kind == "counter"]
    assert ours
    assert all(m.name.endswith("_total") for m in ours)


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (3.0, "3"), (0.1, "0.1"), (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e22, "1e+22")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_options() -> None:
    options = parse_options(["summary_latencies=true", "summary_quantiles=0.5:0.05,0.75:0.01"], interval_ms=10)
    assert (options.counters, options.summaries, options.histograms) == (True, True, False)
    assert options.quantiles == (0.5, 0.75)
    assert options.interval_ns == 10_000_000
    assert parse_options([]).quantiles == DEFAULT_QUANTILES
    assert parse_options(["counter_latencies=false", "counter_latencies=true"]).counters


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("counter_latencies", "option format is <setting>=<value>. Got counter_latencies"),
        ("=true", "option format"),
        ("counter_latencies=", "option format"),
        ("a,counter_latencies=true", "unknown setting"),
        ("counter_latencies=maybe", "'true' or 'false', found 'maybe'"),
        ("summary_quantiles=0.5", "expects <quantile>:<error>, found '0.5'"),
        ("summary_quantiles=0.5:x", "expects <quantile>:<error>"),
        ("summary_quantiles=1.5:0.1", "lie in 0..1"),
        ("summary_quantiles=nan:0.1", "lie in 0..1"),
    ],
)
def test_options_that_are_refused(setting: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text.replace(".", r"\.")):
        parse_options([setting])


def test_quantile_is_the_value_that_its_share_does_not_exceed() -> None:
    values = list(range(1, 101))
    assert [quantile_of(values, q) for q in (0, 0.01, 0.5, 0.99, 1)] == [1, 1, 50, 99, 100]
    assert math.isnan(quantile_of([], 0.5))


def write_proc(proc: Path, busy: int, idle: int) -> None:
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    400 kB\n")


def test_machine_averages_since_the_reading_before(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    write_proc(proc, 100, 100)
    machine = Machine(interval_ns=10, now_ns=0, proc=proc)
    write_proc(proc, 130, 110)
    reading = machine.read(0)
    assert (reading.cpu_utilization, reading.memory_total, reading.memory_used) == (0.75, 1024_000, 614_400)
    write_proc(proc, 130, 210)
    assert machine.read(9) is reading
    assert machine.read(10).cpu_utilization == 0


def test_machine_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
    reading = Machine(0, 0, proc=tmp_path / "missing").read(1)
    assert (reading.cpu_utilization, reading.memory_total, reading.memory_used) == (None, None, None)


def test_machine_reads_this_machine() -> None:
    reading = Machine(0, 0).read(1)
    assert reading.cpu_utilization is not None
    assert 0 <= reading.cpu_utilization <= 1
    assert reading.memory_total is not None
    assert reading.memory_used is not None
    assert 0 < reading.memory_used < reading.memory_total


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_tegra_reads_its_files(tmp_path: Path) -> None:
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
    write_proc(tmp_path / "proc", 1, 1)
    assert Tegra.find(tmp_path) is not None
    (gpu,) = find_gpus(tmp_path)()
    assert (gpu.utilization, gpu.temperature, gpu.power_usage) == (0.347, 48.5, 3.0)
    assert (gpu.memory_total, gpu.memory_used) == (1024_000, 614_400)
    assert (gpu.energy, gpu.power_limit) == (None, None)


def test_tegra_with_only_a_load_file_leaves_the_rest_out(tmp_path: Path) -> None:
    write(tmp_path / "sys/devices/gpu.0/load", "garbage")
    (gpu,) = find_gpus(tmp_path)()
    assert (gpu.utilization, gpu.temperature, gpu.power_usage, gpu.memory_total) == (None, None, None, None)


class FakeNvml:
    """The few calls of `pynvml` that the reader makes; this board has no power limit."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, driver: bool = True) -> None:
        self.millijoules = 5_000
        self._driver = driver

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's name
        if not self._driver:
            raise self.NVMLError("Library not found")

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: b"GPU-abc",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80, used=8),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=42),
            "nvmlDeviceGetPowerUsage": lambda handle: 61_500,
            "nvmlDeviceGetPowerManagementLimit": self._unsupported,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.millijoules,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 33,
        }
        return answers[name]

    def _unsupported(self, handle: int) -> int:
        raise self.NVMLError("Not Supported")


def test_nvml_counts_energy_since_the_start_and_leaves_out_what_is_not_supported() -> None:
    nvml = FakeNvml()
    gpus = Nvml(nvml)
    nvml.millijoules += 2_500
    (gpu,) = gpus.read()
    assert (gpu.uuid, gpu.utilization, gpu.memory_total, gpu.memory_used) == ("GPU-abc", 0.42, 80, 8)
    assert (gpu.power_usage, gpu.power_limit, gpu.energy, gpu.temperature) == (61.5, None, 2.5, 33.0)


def test_without_the_library_of_a_driver_pynvml_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package has pynvml, and most devices have no such GPU."""
    libraries: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", libraries.append)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert [gpu.uuid for gpu in find_gpus(tmp_path)()] == ["GPU-abc"]

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_gpus(tmp_path) is no_gpus
    assert libraries == ["libnvidia-ml.so.1"]


def test_without_a_driver_or_the_package_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    assert find_gpus(tmp_path) is no_gpus
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_gpus(tmp_path)() == []
