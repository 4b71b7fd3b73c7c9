"""Finds a backend by its name: ours, one of a pack, an installed one, or a `backend.py` that came with the model.

Worker's side. A backend is a class named `Backend` (contract: `base.Backend`) without constructor arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from edge_serve.backends.base import Backend, ModelSpec
from edge_serve.backends.packs import NAME, PACKS, built_in_module, install_command, installed_backends
from edge_serve.errors import Internal, InvalidArgument, Unavailable, with_advice

#: the old `platform` names of config.pbtxt, and whose they are (core src/constants.h)
PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_FIL, _OPENVINO, _PYTORCH = (f"install the pack: {install_command(name)}" for name in ("fil", "openvino", "pytorch"))
_IN_PYTHON = "load it in a model.py with backend 'python'"
#: backend of Triton or another server that this installation lacks -> advice
HINTS = {
    "onnxruntime": f"{sys.executable} -m pip install onnxruntime",
    "pytorch": f"{_PYTORCH}, or export the model to ONNX (torch.onnx.export) for backend 'onnxruntime'",
    "tensorflow": f"{_OPENVINO}, or convert the model to ONNX (package tf2onnx) for backend 'onnxruntime'",
    "openvino": f"{_OPENVINO}, or serve the ONNX file it was made from with backend 'onnxruntime'",
    "fil": f"{_FIL}, or convert the trees to ONNX (packages skl2onnx, onnxmltools) for backend 'onnxruntime'",
    "tflite": f'write backend: "openvino", which reads TensorFlow Lite ({_OPENVINO}), or convert the model to '
    "ONNX (tf2onnx --tflite)",
    "vllm": "put Triton's vllm_backend into the backend directory (docs/packs.md), or run the language model in a "
    "decoupled model.py with backend 'python' (docs/generative.md has one)",
    "tensorrtllm": "run the language model in a decoupled model.py with backend 'python' (docs/generative.md has one)",
    "sklearn": f'write backend: "fil" for a forest ({_FIL}), convert the model to ONNX (package skl2onnx), '
    f"or {_IN_PYTHON}",
    "xgboost": f'write backend: "fil" ({_FIL}), or convert the trees to ONNX (package onnxmltools)',
    "lightgbm": f'write backend: "fil" ({_FIL}), or convert the trees to ONNX (package onnxmltools)',
    "keras": f"convert the model to ONNX (package tf2onnx) for backend 'onnxruntime', or {_IN_PYTHON}",
    "mlflow": _IN_PYTHON,
    "huggingface": _IN_PYTHON,
    "dali": "write the preparation of inputs as a model.py (NumPy, Pillow, OpenCV), and join the two in an ensemble",
}


def load(name: str, spec: ModelSpec) -> Backend:
    """A new backend object for one model version.

    Raises:
        InvalidArgument: there is no backend of this name (Triton's text, core src/backend_model.cc).
        Unavailable: it is known, and what it needs is not installed.
        Internal: its module does not import, or holds no `Backend`.
    """
    name = PLATFORMS.get(name, name)
    if NAME.match(name):
        module = _builtin(name) or _of_pack(spec) or _installed(name) or _beside(spec)
        if module is not None:
            return _made(name, module)
        if name in HINTS:
            raise Unavailable(f"backend '{name}' of model '{spec.name}' is not available: {HINTS[name]}")
    text = f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    raise InvalidArgument(with_advice(text, _advice_on_name(name)))


def import_ahead(name: str) -> None:
    """Import a built-in backend, and call its `warm_up`, before a model asks for it. `load` reports a failure."""
    with contextlib.suppress(Exception):
        warm_up = getattr(_builtin(name), "warm_up", None)
        if warm_up is not None:
            warm_up()


def _advice_on_name(name: str) -> str:
    """Return which names there are in place of one that no backend has."""
    import difflib

    names = sorted({"onnxruntime", "python", "tensorrt", *(entry.name for entry in installed_backends())})
    close = difflib.get_close_matches(name, [*names, *PACKS], n=1, cutoff=0.4)
    like = f'Did you mean backend: "{close[0]}"? ' if close else ""
    return f"{like}The backends here are {', '.join(names)}, or a backend.py in the directory of the model"


def _made(name: str, found: ModuleType | type) -> Backend:
    cls = found if isinstance(found, type) else getattr(found, "Backend", None)
    if not isinstance(cls, type):
        raise Internal(f"backend '{name}': {found.__name__} has no class 'Backend'")
    return cast(Backend, cls())


def _builtin(name: str) -> ModuleType | None:
    if not (path := built_in_module(name)):
        return None
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        hint = HINTS.get(name, f"pip install {error.name}")
        raise Unavailable(
            f"backend '{name}' needs the module '{error.name}', which is not installed: {hint}"
        ) from error
    return module if hasattr(module, "Backend") else None


def pack_package(name: str, directory: Path) -> str:
    """Make the files of a pack a package of this process, without importing any. Return its name."""
    package = "edge_serve_pack_" + re.sub(r"\W", "_", name)
    module = ModuleType(package)
    module.__path__ = [str(directory)]
    sys.modules.setdefault(package, module)  # threads may load several models at once
    return package


def _of_pack(spec: ModelSpec) -> ModuleType | None:
    """Import the backend of a pack: `backend.py`, with the files beside it as a package."""
    pack = spec.pack
    if pack is None:
        return None
    if pack.is_python_based:
        return _builtin("python")
    package = pack_package(pack.name, pack.directory)
    try:
        return importlib.import_module(f"{package}.backend")
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"backend '{pack.name}' of model '{spec.name}' needs the module '{error.name}', which {sys.executable} "
            f"lacks: {install_command(pack.name)}"
        ) from error
    except Exception as error:
        text = f"{pack.directory / 'backend.py'} does not import: {type(error).__name__}: {error}"
        advice = install_command(pack.name) if isinstance(error, ImportError) else ""
        raise Internal(with_advice(text, advice)) from error


def _installed(name: str) -> ModuleType | type | None:
    for entry in installed_backends().select(name=name):
        try:
            return cast("ModuleType | type", entry.load())
        except Exception as error:
            raise Internal(f"backend '{name}' ({entry.value}) does not import: {error}") from error
    return None


def _beside(spec: ModelSpec) -> ModuleType | None:
    for directory in (spec.version_directory, spec.model_directory):
        path = directory / "backend.py"
        if path.is_file():
            return _from_file(path, f"edge_serve_backend_{spec.name}_{spec.version}")
    return None


def _from_file(path: Path, name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(re.sub(r"\W", "_", name), path)
    if found is None or found.loader is None:
        raise Internal(f"{path} is no Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[found.name]
        raise Internal(f"{path} does not import: {type(error).__name__}: {error}") from error
    return module
