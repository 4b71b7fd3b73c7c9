"""The libraries of CUDA: which ones are there, and which the installed onnxruntime-gpu is linked with.

Wanted names come from the files of onnxruntime-gpu itself (`elf`), so they are right for every release of it. Libraries
are looked for in the directories where the dynamic linker looks, and in the nvidia-* packages of pip.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from edge_serve.doctor.elf import needed
from edge_serve.doctor.finding import Finding
from edge_serve.doctor.gpu import OLDEST_DRIVER, GpuMachine, find_machine, read

#: where libraries lie that no file of /etc/ld.so.conf.d names
_DIRECTORIES = (
    "/usr/lib/wsl/lib", "/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/usr/lib/*-linux-gnu/nvidia",
    "/usr/lib/*-linux-gnu/tegra", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib", "/opt/nvidia/*/lib",
)  # fmt: skip
#: shown where they are found, wanted or not: name without version -> what it is
_SHOWN = {"libcuda": "driver", "libcudart": "CUDA", "libcudnn": "cuDNN", "libnvinfer": "TensorRT"}
#: the libraries that pip's package tensorrt has for x86-64
_TENSORRT = ("libnvinfer", "libnvonnxparser")
_PROVIDERS = {"CUDA": "libonnxruntime_providers_cuda.so", "TensorRT": "libonnxruntime_providers_tensorrt.so"}
_OF_NVIDIA = re.compile(
    r"lib(?:cuda|cudart|cublas\w*|cudnn\w*|cufft\w*|curand|cusparse|nvrtc|nvinfer\w*|nvonnxparser)\.so"
)


def examine_libraries(
    root: Path = Path("/"), packages: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Examine the libraries of CUDA and what the installed onnxruntime-gpu wants of them.

    Args:
        packages: directories of Python packages, as in `sys.path`.
    """
    machine = find_machine(root)
    places = directories(root, packages, os.environ if environ is None else environ)
    found = {kind: path for name, kind in _SHOWN.items() if (path := find(name, places)) is not None}
    for kind, path in found.items():
        yield Finding("cuda", f"{kind} {version_of(path, root)} in {path.parent}")
    yield from _mismatch(found.get("driver"), machine, root)
    wanted = wanted_libraries(packages)
    if not wanted:
        if machine.gpu:
            advice = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
            if machine.kind == "jetson":
                advice = "for the GPU: edge-serve build makes plans of them (docs/jetson.md)"
            yield Finding("cuda", "onnxruntime-gpu is not installed: ONNX models run on the CPU", None, advice)
        return
    for provider, names in wanted.items():
        yield _provider(provider, names, places, machine)
    yield from _driver(wanted.get("CUDA", ()), machine)


def _mismatch(library: Path | None, machine: GpuMachine, root: Path) -> Iterator[Finding]:
    """Find a driver that was upgraded under a kernel that still has the old one: no CUDA call works."""
    version = version_of(library, root) if library is not None else ""
    if machine.kind == "pc" and machine.driver and version.count(".") and version != machine.driver:
        text = f"the kernel has loaded driver {machine.driver}, libcuda is of {version}: CUDA does not work"
        yield Finding("cuda", text, False, "restart the machine")


def wanted_libraries(packages: Sequence[Path]) -> dict[str, list[str]]:
    """Return NVIDIA's libraries that each provider of onnxruntime-gpu is linked with; empty = it is not installed."""
    wanted = {}
    for provider, name in _PROVIDERS.items():
        for directory in packages:
            with contextlib.suppress(OSError, ValueError):
                names = needed(directory / "onnxruntime" / "capi" / name)
                wanted[provider] = sorted(one for one in names if _OF_NVIDIA.match(one))
                break
    return wanted


def _provider(provider: str, names: Iterable[str], places: Sequence[Path], machine: GpuMachine) -> Finding:
    missing = [name for name in names if find(name, places) is None]
    head = f"onnxruntime-gpu, provider {provider}"
    if not missing:
        return Finding("cuda", f"{head}: all libraries are there ({', '.join(names)})", True)
    text = f"{head}: wants {', '.join(names)}; missing: {', '.join(missing)}"
    # TensorRT is one of two ways to a GPU; CUDA is what onnxruntime-gpu was installed for
    good = None if provider == "TensorRT" or not machine.gpu else False
    return Finding("cuda", text, good, _advice(missing, machine))


def _advice(missing: Sequence[str], machine: GpuMachine) -> str:
    if machine.kind == "jetson":
        return "apt-get install nvidia-jetpack, and NVIDIA's onnxruntime-gpu for this JetPack: PyPI has none for Jetson"
    if all(name.split(".")[0] in _TENSORRT for name in missing):
        return f"for TensorRT {_major(missing[0])}: pip install 'tensorrt=={_major(missing[0])}.*', else leave it"
    return "pip install 'onnxruntime-gpu[cuda,cudnn]', or install CUDA and cuDNN of these versions from NVIDIA"


def _driver(names: Iterable[str], machine: GpuMachine) -> Iterator[Finding]:
    cuda = next((_major(name) for name in names if name.startswith("libcudart.")), 0)
    oldest = OLDEST_DRIVER.get(cuda)
    if oldest is None or not machine.driver or machine.kind == "jetson":
        return
    if tuple(map(int, machine.driver.split(".")[:2])) < oldest:
        text = f"driver {machine.driver} is too old for CUDA {cuda}, which onnxruntime-gpu wants"
        advice = f"install driver {oldest[0]}.{oldest[1]} or newer, or an onnxruntime-gpu for an older CUDA"
        yield Finding("cuda", text, False, advice)


def directories(root: Path, packages: Sequence[Path], environ: Mapping[str, str]) -> list[Path]:
    """Return the directories where the dynamic linker and onnxruntime.preload_dlls look."""
    patterns = [one for one in environ.get("LD_LIBRARY_PATH", "").split(":") if one.startswith("/")]
    for file in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        patterns += [line.strip() for line in read(file).splitlines() if line.startswith("/")]
    patterns += _DIRECTORIES
    found = [Path(path) for pattern in patterns for path in sorted(glob.glob(str(root / pattern.lstrip("/"))))]
    for directory in packages:
        found += sorted(directory.glob("nvidia/*/lib")) + sorted(directory.glob("tensorrt_libs"))
    return list(dict.fromkeys(found))


def find(name: str, places: Iterable[Path]) -> Path | None:
    """Return the file of a library, `libcudnn.so.9`, or of any version of it, `libcudnn`."""
    pattern = name if ".so" in name else f"{name}.so.*"
    return next((path for place in places for path in sorted(place.glob(pattern))), None)


def version_of(path: Path, root: Path = Path("/")) -> str:
    """Return the version of a library: 9.1.0 of `libcudnn.so.9 -> libcudnn.so.9.1.0`; of CUDA that of its toolkit."""
    toolkit = next((one for one in path.parents if one.name.startswith("cuda") and one.is_relative_to(root)), None)
    if toolkit is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(read(toolkit / "version.json"))["cuda"]["version"])
    return os.path.basename(os.path.realpath(path)).partition(".so.")[2] or path.name.partition(".so.")[2]


def _major(name: str) -> int:
    found = re.search(r"\.so\.(\d+)", name)
    return int(found[1]) if found else 0
