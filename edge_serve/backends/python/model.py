"""The file of a Python model: where it is, and how it is imported.

As Triton's stub (python_backend src/pb_stub.cc, ModelContext): the file is the submodule `<version>.model` of a package
made of its directory, with its `__init__.py`, so relative imports and models of several files work; its directory and
the one above are appended to `sys.path`. The file of a python-based backend is the module `model`, and only its
directory is appended.

`triton_python_backend_utils` is always this package's own in a worker, also where the model's environment has another
edge-serve installed, or the model's directory has a stand-in for tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from edge_serve.backends.base import ModelSpec
from edge_serve.backends.python.api.advice import set_model_dir
from edge_serve.backends.python.api.errors import describe
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import Internal, with_advice

#: holds triton_python_backend_utils.py
UTILS_DIRECTORY = Path(__file__).parents[1] / "python_path"


def find(spec: ModelSpec) -> Path:
    """Return the model's file; that of its backend, if the backend is a python-based one.

    Raises:
        Internal: it is missing, or is not named *.py.
    """
    if spec.pack is not None and spec.pack.is_python_based:
        return spec.pack.directory / "model.py"
    path = spec.version_directory / (spec.config.get("default_model_filename") or "model.py")
    if not path.is_file():
        text = f"Python model file not found in '{path}'"
        raise Internal(with_advice(text, advice_on_file(path.parent, path.name, spec.name)))
    if path.suffix != ".py":
        raise Internal(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    return path


def _provide_utils() -> None:
    """Register the modules that models import; UTILS_DIRECTORY on `sys.path` is for processes that a model spawns."""
    from edge_serve.backends.python_path import c_python_backend_utils, triton_python_backend_utils

    for module in (c_python_backend_utils, triton_python_backend_utils):
        sys.modules[module.__name__.rpartition(".")[2]] = module


def _import_package(name: str, directory: Path) -> None:
    """Make a directory a package, and run its `__init__.py` if it has one. Raises what that file raises."""
    file = directory / "__init__.py"
    if file.is_file():
        spec = spec_from_file_location(name, file, submodule_search_locations=[str(directory)])
    else:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(directory)]
    assert spec is not None
    package = sys.modules[name] = module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(package)


class ModelFile:
    """An imported model file, until `unload`.

    Attributes:
        model_class: its `TritonPythonModel`: a class, or another callable that makes the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Import it.

        Raises:
            Internal: no such file, its code fails, or it has no class `TritonPythonModel`.
        """
        path = find(spec)
        is_of_backend = spec.pack is not None and spec.pack.is_python_based
        self._package = path.stem if is_of_backend else str(spec.version)
        parents = [str(path.parent)] if is_of_backend else [str(path.parent), str(path.parent.parent)]
        self._paths = [*parents, str(UTILS_DIRECTORY)]
        set_model_dir(str(spec.version_directory if is_of_backend else path.parent))
        sys.path.extend(self._paths)
        _provide_utils()
        self._remove_modules()  # a test may have another model open
        try:
            self.model_class = self._import(path, self._package if is_of_backend else f"{self._package}.{path.stem}")
        except BaseException:
            self.unload()
            raise

    def _import(self, path: Path, name: str) -> Callable[[], Any]:
        try:
            if name != self._package:
                _import_package(self._package, path.parent)
            __import__(name)
        # A model may leave by sys.exit() too: that is a failed load, not the end of the worker.
        except BaseException as error:
            raise Internal(describe(error, sys._getframe())) from error
        module = sys.modules[name]
        model_class: Callable[[], Any] | None = getattr(module, "TritonPythonModel", None)
        if not callable(model_class):
            own = [word for word, value in vars(module).items() if getattr(value, "__module__", "") == name]
            found = ", ".join(own[:5]) or "nothing"
            text = f"AttributeError: module '{name}' has no attribute 'TritonPythonModel'"
            raise Internal(with_advice(text, f"{path.name} defines {found}, expected class TritonPythonModel"))
        return model_class

    def unload(self) -> None:
        """Take its modules and directories out of the interpreter again."""
        self._remove_modules()
        for path in self._paths:
            if path in sys.path:
                sys.path.remove(path)

    def _remove_modules(self) -> None:
        for name in [n for n in sys.modules if n == self._package or n.startswith(self._package + ".")]:
            del sys.modules[name]
