"""Why a provider cannot be used: the message names the package that is missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from edge_serve.backends.onnxruntime.libraries import Installed, absent_provider, has_cuda, missing
from edge_serve.backends.onnxruntime.providers import CUDA, OPENVINO, TENSORRT

GPU = Installed("1.23.2", Path("/onnxruntime"), [TENSORRT, CUDA, "CPUExecutionProvider"])
NO_GPU = Installed("1.23.2", Path("/onnxruntime"), ["CPUExecutionProvider"])


def lacking(*names: str) -> Callable[[str], None]:
    """Return a loader of shared libraries that fails as the dynamic linker does."""

    def load(path: str) -> None:
        if "libonnxruntime_providers_shared" in path:
            return
        for name in names:
            if "providers" in path or path == name:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    return load


@pytest.mark.parametrize(
    ("provider", "name", "text"),
    [
        (CUDA, "libcudnn.so.9", "(libcudnn.so.9 is not found): pip install 'onnxruntime-gpu[cuda,cudnn]==1.23.2' "
                                "(it is in the package nvidia-cudnn), and see: edge-serve doctor"),
        (CUDA, "libcuda.so.1", "(libcuda.so.1 of the NVIDIA driver is not found): install the driver"),
        (CUDA, "libcufft.so.11", "(it is in the package nvidia-cufft)"),
        (TENSORRT, "libnvinfer.so.10", "(libnvinfer.so.10 is not found): pip install 'tensorrt==10.*', or remove"),
    ],
)  # fmt: skip
def test_a_library_that_is_missing(provider: str, name: str, text: str) -> None:
    told = missing(provider, GPU, load=lacking(name)).message
    assert told.startswith(f"onnxruntime has no {provider}, which the model asks for (")
    assert text in told


def test_whether_the_package_was_built_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModuleSpec("onnxruntime", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    (tmp_path / "capi").mkdir()
    assert not has_cuda.__wrapped__()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").touch()
    assert has_cuda.__wrapped__()


def test_another_major_version_of_cuda() -> None:
    told = missing(CUDA, GPU, load=lacking("libcublasLt.so.12", "libcudart.so.11", "libcudart.so.14")).message
    assert "(libcublasLt.so.12 is not found, which is of CUDA 12; this machine has CUDA 13)" in told
    assert "(it is in the package nvidia-cublas)" in told


def test_the_library_raises_an_error_that_names_no_file() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Please install {} as mentioned in the GPU requirements page, and make "
        "sure that they are in the PATH"
    )
    assert absent_provider(text.format("TensorRT libraries")) == TENSORRT
    assert absent_provider(text.format("the correct version of CUDA and cuDNN")) == CUDA
    assert absent_provider("[ONNXRuntimeError] : 1 : FAIL : Load model failed") is None


def test_libraries_that_are_there() -> None:
    told = missing(CUDA, GPU, load=lacking()).message
    assert told.endswith(
        "(its libraries load, and it does not start: is there a GPU with its driver?): see: edge-serve doctor"
    )


def test_a_library_that_is_broken() -> None:
    def load(path: str) -> None:
        raise OSError(f"{path}: file too short")

    assert "file too short): see: edge-serve doctor" in missing(CUDA, GPU, load=load).message


def test_a_package_without_the_provider() -> None:
    told = missing(OPENVINO, NO_GPU).message
    assert told.endswith(
        "(available are: CPUExecutionProvider): pip install onnxruntime-openvino in place of onnxruntime"
    )


@pytest.mark.parametrize("installed", [GPU, NO_GPU])
def test_both_packages(monkeypatch: pytest.MonkeyPatch, installed: Installed) -> None:
    versions = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.23.2"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    told = missing(CUDA, installed).message
    assert "(onnxruntime 1.32.0 and onnxruntime-gpu 1.23.2 are both installed and overwrite each other)" in told
    assert told.endswith("pip uninstall -y onnxruntime onnxruntime-gpu; pip install 'onnxruntime-gpu[cuda,cudnn]'")
