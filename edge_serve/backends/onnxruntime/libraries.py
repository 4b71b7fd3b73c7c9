"""Why a provider cannot be used, and what to install: the installed packages, and the libraries that do not load."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends.onnxruntime.providers import CUDA, OPENVINO, TENSORRT
from edge_serve.errors import Unavailable
from edge_serve.records import frozen

#: the packages that bring the module onnxruntime and overwrite each other's files
_PACKAGES = ("onnxruntime", "onnxruntime-gpu")
_FILES = {CUDA: "libonnxruntime_providers_cuda.so", TENSORRT: "libonnxruntime_providers_tensorrt.so"}
_GPU = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
#: the fix for a provider that the installed package does not have
_HINTS = {
    CUDA: f"{_GPU} in place of onnxruntime",
    TENSORRT: f"{_GPU} in place of onnxruntime, and TensorRT's libraries",
    OPENVINO: "pip install onnxruntime-openvino in place of onnxruntime",
}
_NOT_FOUND = re.compile(r"(lib[\w.-]+?)\.so\.(\d+)[\d.]*: cannot open shared object file")
#: a library of CUDA by the start of its name, and the package of pip that has it
_OWNERS = (
    ("libcudnn", "nvidia-cudnn"),
    ("libcublas", "nvidia-cublas"),
    ("libcudart", "nvidia-cuda-runtime"),
    ("libcufft", "nvidia-cufft"),
    ("libcurand", "nvidia-curand"),
    ("libnvrtc", "nvidia-cuda-nvrtc"),
    ("libnvinfer", "tensorrt"),
    ("libnvonnxparser", "tensorrt"),
)
#: major versions of CUDA that libraries may be of
_MAJORS = range(11, 15)

Load = Callable[[str], Any]


@frozen
class Installed:
    """The installed ONNX Runtime.

    Attributes:
        folder: of its module.
        providers: those that it was built with.
    """

    version: str
    folder: Path
    providers: Sequence[str]


def absent_provider(text: str) -> str | None:
    """Return the provider whose libraries do not load, if an error of the library says so, which does not name them."""
    if "GPU requirements page" not in text:
        return None
    return TENSORRT if "TensorRT" in text else CUDA


def missing(provider: str, installed: Installed, load: Load = ctypes.CDLL) -> Unavailable:
    """Return the error for a provider that the model asks for, and without which the library starts a session.

    Args:
        load: loads a shared library, or raises OSError.
    """
    both = {name: version for name in _PACKAGES if (version := _version(name))}
    if len(both) == len(_PACKAGES):
        found = " and ".join(f"{name} {version}" for name, version in both.items())
        reason = f"{found} are both installed and overwrite each other"
        hint = f"pip uninstall -y {' '.join(_PACKAGES)}; {_GPU}"
    elif provider in installed.providers:
        reason, hint = _not_loaded(provider, installed, load)
    else:
        reason = f"available are: {', '.join(installed.providers)}"
        hint = _HINTS.get(provider, "install an onnxruntime that has it")
    return Unavailable(f"onnxruntime has no {provider}, which the model asks for ({reason}): {hint}")


def _not_loaded(provider: str, installed: Installed, load: Load) -> tuple[str, str]:
    """Return the reason why the library of a provider does not load, and the fix."""
    doctor = "see: edge-serve doctor"
    if provider not in _FILES:
        return "its libraries do not load", _HINTS.get(provider, doctor)
    folder = installed.folder / "capi"
    try:
        load(str(folder / "libonnxruntime_providers_shared.so"))
        load(str(folder / _FILES[provider]))
    except OSError as error:
        match = _NOT_FOUND.search(str(error))
        if match is None:
            return f"its libraries do not load: {error}", doctor
        return _not_found(match[1], int(match[2]), installed, load)
    return "its libraries load, and it does not start: is there a GPU with its driver?", doctor


def _not_found(name: str, major: int, installed: Installed, load: Load) -> tuple[str, str]:
    if name == "libcuda":
        return f"{name}.so.{major} of the NVIDIA driver is not found", "install the driver, and see: edge-serve doctor"
    package = next((package for start, package in _OWNERS if name.startswith(start)), "")
    reason = f"{name}.so.{major} is not found"
    if name.startswith(("libcublas", "libcudart")):
        others = [str(other) for other in _MAJORS if other != major and _loads(f"libcudart.so.{other}", load)]
        reason += f", which is of CUDA {major}"
        reason += f"; this machine has CUDA {', '.join(others)}" if others else ""
    if package == "tensorrt":
        return reason, f"pip install 'tensorrt=={major}.*', or remove the accelerator tensorrt from config.pbtxt"
    of = f" (it is in the package {package})" if package else ""
    return reason, f"pip install 'onnxruntime-gpu[cuda,cudnn]=={installed.version}'{of}, and see: edge-serve doctor"


def _loads(name: str, load: Load) -> bool:
    try:
        load(name)
    except OSError:
        return False
    return True


@functools.cache
def has_cuda() -> bool:
    """Return whether the installed library was built for CUDA, without importing it. True if it is not installed."""
    found = importlib.util.find_spec("onnxruntime")
    folders = found.submodule_search_locations if found is not None else None
    return not folders or any((Path(folder) / "capi" / _FILES[CUDA]).exists() for folder in folders)


def _version(package: str) -> str:
    from importlib import metadata  # 15 modules, which the front end does not need

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
