"""Readings of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from edge_serve import __version__
from edge_serve.errors import InvalidArgument
from edge_serve.messages.status import ProcessReading
from edge_serve.models.repository.repository import FoundModel
from edge_serve.observe.status.probe import Probe, library_versions, read_process


def test_this_process_has_memory_and_an_age() -> None:
    reading = read_process(os.getpid())

    assert reading.rss_bytes is not None
    assert reading.rss_bytes > 10 << 20
    assert reading.pss_bytes is not None
    assert 0 < reading.pss_bytes <= reading.rss_bytes * 1.1
    assert reading.uptime_seconds is not None
    assert 0 <= reading.uptime_seconds < 7200


def test_probe_of_an_ended_process_is_empty() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert read_process(child.pid) == ProcessReading()


def test_a_process_may_be_called_anything(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (tmp_path / "proc/uptime").write_text("1000.5 2000")
    ticks = os.sysconf("SC_CLK_TCK")
    (folder / "stat").write_text(f"7 (a) b (c)) S {' '.join('0' * 18)} {400 * ticks} 0 0")

    assert read_process(7, tmp_path) == ProcessReading(uptime_seconds=600.5)


def test_a_look_at_the_machine(tmp_path: Path) -> None:
    found = {"m": FoundModel("m", tmp_path)}
    readings = Probe(lambda: found, gpu=False).read([os.getpid()])

    assert readings.found == found
    assert readings.cores >= 1
    assert readings.machine.memory_total
    assert readings.gpus == ()
    assert set(readings.processes) == {os.getpid()}
    assert readings.versions["edge-serve"] == __version__


def test_a_repository_that_cannot_be_read_hides_nothing_else() -> None:
    def scan() -> dict[str, FoundModel]:
        raise InvalidArgument("it is gone")

    readings = Probe(scan, gpu=False).read([])

    assert readings.found is None
    assert readings.cores >= 1


def test_a_tegra_is_a_gpu(tmp_path: Path) -> None:
    load = tmp_path / "sys/devices/platform/gpu.0/load"
    load.parent.mkdir(parents=True)
    load.write_text("420")
    (tmp_path / "proc").mkdir()

    (gpu,) = Probe(dict, root=tmp_path).read([]).gpus
    assert gpu.utilization == 0.42
    assert Probe(dict, gpu=False, root=tmp_path).read([]).gpus == ()


def test_versions_name_what_is_installed_only() -> None:
    versions = library_versions()

    assert list(versions)[:2] == ["edge-serve", "python"]
    assert "numpy" in versions
    assert "tensorrt" not in versions
