"""The GPU, its driver and the libraries of CUDA, on machines that tests make up."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from edge_serve.doctor import gpu
from edge_serve.doctor.elf import needed
from edge_serve.doctor.finding import Finding
from edge_serve.doctor.gpu import driver_version, examine_gpu, find_machine
from edge_serve.doctor.libraries import examine_libraries

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  555.42.02  Mon Mar 24 10:00:00 UTC 2025\nGCC version: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\nGCC version: 12\n"
WSL2 = "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f) (gcc 11.2.0)\n"
TEGRA = (
    "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 2025\n"
)
CUDA12 = ("libcublas.so.12", "libcudart.so.12", "libcudnn.so.9", "libc.so.6", "libcufft.so.11")


def elf(*names: str) -> bytes:
    """A 64-bit ELF file that is linked with these libraries."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    offsets = [1 + sum(len(name) + 1 for name in names[:number]) for number in range(len(names))]
    base, dynamic = 0x1000, 64 + 2 * 56
    table = dynamic + 16 * (len(names) + 2)
    entries = b"".join(struct.pack("<qQ", 1, offset) for offset in offsets) + struct.pack("<qQ", 5, base + table)
    body = entries + struct.pack("<qQ", 0, 0) + strings
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, dynamic + len(body), dynamic + len(body), 4096)
    return head + load + struct.pack("<IIQQQQQQ", 2, 6, dynamic, base + dynamic, 0, len(entries) + 16, 0, 8) + body


def root_with(root: Path, **files: str | bytes) -> Path:
    """Write files below `root`; in their names `__` stands for `/` and `_d_` for `.`."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_d_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def library(root: Path, directory: str, name: str, version: str = "") -> None:
    """Write a library, and the link by which programs find it."""
    folder = root / directory
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (version or name)).touch()
    if version:
        (folder / name).symlink_to(version)


def gpu_package(root: Path, cuda: tuple[str, ...] = CUDA12, tensorrt: tuple[str, ...] = ()) -> Path:
    """Write the files of an installed onnxruntime-gpu; the directory of packages."""
    capi = root / "site-packages" / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (capi / "libonnxruntime_providers_cuda.so").write_bytes(elf(*cuda))
    if tensorrt:
        (capi / "libonnxruntime_providers_tensorrt.so").write_bytes(elf(*tensorrt))
    return root / "site-packages"


def cuda(root: Path, *packages: Path) -> list[Finding]:
    return list(examine_libraries(root, packages, {}))


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "555.42.02"), (OPEN, "570.86.15"), ("", ""), ("NVRM ?", "")])
def test_the_driver_is_read_from_proc(text: str, version: str) -> None:
    assert driver_version(text) == version


def test_a_pc_with_a_driver(tmp_path: Path) -> None:
    root = root_with(tmp_path, proc__driver__nvidia__version=OPEN, dev__nvidia0="", dev__nvidiactl="")

    driver, missing, metrics = examine_gpu(root)
    assert (driver.text, driver.good) == ("NVIDIA driver 570.86.15", True)
    assert (missing.text, missing.good) == ("/dev/nvidia-uvm is missing", False)
    assert (metrics.good, "the extra [nvml]" in metrics.advice) == (None, True)


def test_the_library_for_metrics_is_named_only_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_with(tmp_path, proc__driver__nvidia__version=OPEN)
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())

    assert not any("nvidia-ml-py" in finding.text for finding in examine_gpu(root))


def test_a_card_without_a_driver(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")

    (finding,) = examine_gpu(tmp_path)
    assert "an NVIDIA card without a driver" in finding.text
    assert "install the distribution's NVIDIA driver" in finding.advice


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    (finding,) = examine_gpu(tmp_path)

    assert (finding.text, finding.good) == ("no NVIDIA GPU found; models run on the CPU", None)
    assert cuda(tmp_path) == []


@pytest.mark.parametrize(
    ("kernel", "driver", "text", "advice"),
    [
        (WSL2, True, "the GPU is reached through the driver of Windows", ""),
        (WSL2, False, "no libcuda.so.1 from Windows", "none in Linux"),
        ("Linux version 4.4.0-19041-Microsoft\n", False, "WSL 1 (Windows) has no GPU", "wsl --set-version"),
    ],
)
def test_windows_subsystem_for_linux(tmp_path: Path, kernel: str, driver: bool, text: str, advice: str) -> None:
    root_with(tmp_path, proc__version=kernel)
    if driver:
        library(tmp_path, "usr/lib/wsl/lib", "libcuda.so.1")

    (finding,) = examine_gpu(tmp_path)
    assert text in finding.text
    assert advice in finding.advice
    assert finding.good is (True if driver else None)


@pytest.mark.parametrize(
    ("release", "jetpack"),
    [
        (TEGRA, "Jetson Linux 36.4.3 (JetPack 6.1 or 6.2)"),
        ("# R36 (release), REVISION: 3.0, GCID: 1", "Jetson Linux 36.3.0 (JetPack 6.0)"),
        ("# R35 (release), REVISION: 5.0, GCID: 1", "Jetson Linux 35.5.0 (JetPack 5)"),
        ("# R77 (release), REVISION: 1.0, GCID: 1", "Jetson Linux 77.1.0"),
        ("garbage", "Orin Nano"),
    ],
)
def test_a_jetson_is_named_with_its_jetpack(tmp_path: Path, release: str, jetpack: str) -> None:
    model = "NVIDIA Jetson Orin Nano Developer Kit\0"
    root = root_with(tmp_path, etc__nv_tegra_release=release) / "proc/device-tree"
    root.mkdir(parents=True)
    (root / "model").write_text(model)

    (finding,) = examine_gpu(tmp_path)
    assert finding.text.startswith("NVIDIA Jetson Orin Nano Developer Kit")
    assert jetpack in finding.text
    assert find_machine(tmp_path).gpu


def test_jetson_libraries_are_compared_with_the_needs_of_the_wheel(tmp_path: Path) -> None:
    root_with(tmp_path, etc__nv_tegra_release=TEGRA)
    library(tmp_path, "usr/lib/aarch64-linux-gnu", "libcudnn.so.9", "libcudnn.so.9.3.0")
    library(tmp_path, "usr/lib/aarch64-linux-gnu", "libnvinfer.so.10", "libnvinfer.so.10.3.0")
    library(tmp_path, "usr/lib/aarch64-linux-gnu/nvidia", "libcuda.so.1", "libcuda.so.1.1")
    for name in ("libcudart.so.12", "libcublas.so.12", "libcufft.so.11"):
        library(tmp_path, "usr/local/cuda-12.6/targets/aarch64-linux/lib", name)
    (tmp_path / "usr/local/cuda-12.6/version.json").write_text('{"cuda": {"version": "12.6.11"}}')

    findings = cuda(tmp_path, gpu_package(tmp_path, tensorrt=("libnvinfer.so.10", "libnvonnxparser.so.10")))

    said = [finding.text for finding in findings]
    assert [text.partition(" in ")[0] for text in said[:4]] == [
        "driver 1.1", "CUDA 12.6.11", "cuDNN 9.3.0", "TensorRT 10.3.0",
    ]  # fmt: skip
    assert "provider CUDA: all libraries are there (libcublas.so.12, libcudart.so.12, libcudnn.so.9" in said[4]
    assert "missing: libnvonnxparser.so.10" in said[5]
    assert [finding.good for finding in findings[4:]] == [True, None]
    assert "nvidia-jetpack" in findings[5].advice


def test_a_missing_library_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    root_with(tmp_path, proc__driver__nvidia__version=CLOSED)
    library(tmp_path, "usr/lib/x86_64-linux-gnu", "libcuda.so.1", "libcuda.so.555.42.02")
    packages = gpu_package(tmp_path)
    library(packages, "nvidia/cuda_runtime/lib", "libcudart.so.12")

    driver, runtime, provider = cuda(tmp_path, packages)
    assert driver.text.startswith("driver 555.42.02 in ")
    assert runtime.text.startswith("CUDA 12 in ")
    assert provider.good is False
    assert "missing: libcublas.so.12, libcudnn.so.9, libcufft.so.11" in provider.text
    assert provider.advice.startswith("pip install 'onnxruntime-gpu[cuda,cudnn]'")


def test_a_driver_that_is_too_old_for_cuda(tmp_path: Path) -> None:
    root_with(tmp_path, proc__driver__nvidia__version=CLOSED)

    *_, finding = cuda(tmp_path, gpu_package(tmp_path, ("libcudart.so.13",)))
    assert finding.text == "driver 555.42.02 is too old for CUDA 13, which onnxruntime-gpu wants"
    assert "580.65 or newer" in finding.advice


def test_a_driver_that_was_upgraded_without_a_restart(tmp_path: Path) -> None:
    root_with(tmp_path, proc__driver__nvidia__version=CLOSED)
    library(tmp_path, "usr/lib/x86_64-linux-gnu", "libcuda.so.1", "libcuda.so.570.86.15")

    findings = cuda(tmp_path)
    assert [finding.good for finding in findings] == [None, False, None]
    assert "the kernel has loaded driver 555.42.02, libcuda is of 570.86.15" in findings[1].text
    assert findings[2].text == "onnxruntime-gpu is not installed: ONNX models run on the CPU"


def test_needed_reads_the_libraries_of_an_elf_file(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(elf("liba.so.1", "libb.so.22"))

    assert needed(tmp_path / "lib.so") == ["liba.so.1", "libb.so.22"]
    assert all(".so" in name for name in needed(Path(sys.executable).resolve()))


@pytest.mark.parametrize("content", [b"text, no ELF file", elf("liba.so.1")[:100], b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_that_is_no_elf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib.so").write_bytes(content)

    with pytest.raises(ValueError):
        needed(tmp_path / "lib.so")
