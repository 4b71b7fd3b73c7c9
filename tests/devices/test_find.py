"""The probe against a stand-in libcuda, through the process that the server starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from edge_serve.devices import find
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.devices.find import find_devices
from tests.devices import stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the stand-in libcuda.so.1."""
    return stand_in.build(tmp_path_factory.mktemp("cuda"))


def found(folder: Path, visible: str | None = None, **fields: object) -> Gpus:
    environ = {**os.environ, **stand_in.environ(folder, **fields)}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return find_devices(Path("/nowhere"), environ)


def test_devices_are_read_in_the_order_of_cuda(folder: Path) -> None:
    devices = found(folder, devices=2, capability="12.1", memory=16 << 30)

    assert devices.cuda == (13, 0)
    assert devices.found == (
        Gpu(0, "Stand-in GPU 0", f"GPU-{UUID('a0' * 16)}", (12, 1), 16 << 30),
        Gpu(1, "Stand-in GPU 1", f"GPU-{UUID('a1' * 16)}", (12, 1), 16 << 30),
    )
    assert str(devices.found[0]) == "GPU 0: Stand-in GPU 0, compute capability 12.1, memory 16.0 GiB"


def test_cuda_visible_devices_chooses_and_numbers(folder: Path) -> None:
    devices = found(folder, visible="1", devices=2)

    assert [(device.id, device.name) for device in devices.found] == [(0, "Stand-in GPU 1")]
    assert devices.uuid(0).startswith("GPU-a1")
    assert devices.uuid(1) == ""


def test_integrated_device_has_the_memory_of_the_machine(folder: Path) -> None:
    (device,) = found(folder, integrated=1).found

    assert device.integrated
    assert "memory shared with the CPU" in str(device)


@pytest.mark.parametrize(
    ("fields", "reason", "advice"),
    [
        ({"devices": 0}, "CUDA does not work: cuInit failed with CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ({"init": 803}, "cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"),
        ({"init": 999}, "cuInit failed with CUDA_ERROR_UNKNOWN", "dmesg"),
        ({"init": 12345}, "cuInit failed with CUDA error 12345", ""),
        ({"crash": 1}, "the process that asked the CUDA driver was ended by SIGSEGV", "dmesg"),
    ],
    ids=["hidden devices", "replaced driver", "unknown error", "error without a name", "crash"],
)
def test_driver_that_does_not_work_is_explained(folder: Path, fields: dict[str, Any], reason: str, advice: str) -> None:
    devices = found(folder, **fields)

    assert not devices.supported
    assert devices.ids(0.0) is None
    assert reason in devices.reason
    assert advice in devices.advice


def test_probe_imports_no_module_of_the_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert len(found(folder, devices=1).found) == 1


def test_driver_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PROBE_SECONDS", 0.5)

    assert found(folder, hang=1).reason == "the CUDA driver did not answer within 0.5 s"


def test_library_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")

    devices = find_devices(Path("/nowhere"), {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})

    assert "libcuda.so.1" in devices.reason
    assert "install NVIDIA's driver" in devices.advice


def test_machine_without_a_sign_of_a_driver_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("a process was started"))

    assert find_devices(tmp_path, {}) == Gpus()


@pytest.mark.parametrize("node", ["dev/nvidiactl", "dev/nvhost-gpu", "dev/dxg"])
def test_device_file_is_a_sign_of_a_driver(node: str, tmp_path: Path) -> None:
    (tmp_path / node).parent.mkdir()
    (tmp_path / node).touch()

    assert find_devices(tmp_path, {"PATH": os.environ["PATH"]}).reason


def test_probe_makes_no_context(folder: Path) -> None:
    """The stand-in has no cuCtxCreate: a probe that asked for one would not print devices."""
    environ = {**os.environ, **stand_in.environ(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "edge_serve.devices.probe"], env=environ, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["devices"][0]["capability"] == [8, 7]
    assert done.stderr == ""


def test_ids_follow_the_minimum_of_compute_capability() -> None:
    def device(id: int, capability: tuple[int, int]) -> Gpu:
        return Gpu(id, "x", f"GPU-{id}", capability, 1)

    devices = Gpus((device(0, (5, 3)), device(1, (6, 0)), device(2, (12, 0))), (12, 6))

    assert devices.ids(6.0) == [1, 2]
    assert devices.ids(0.0) == [0, 1, 2]
    assert Gpus(cuda=(12, 6)).ids(6.0) == []
