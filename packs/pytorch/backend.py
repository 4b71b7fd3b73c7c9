"""The backend `pytorch`: TorchScript, exported programs (`torch.export`), and AOTInductor packages.

Start in `instance` for what happens to a batch, in `settings` for what the configuration can say. docs/pytorch.md is
the user's page, and has the measurements behind the defaults.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_serve.backends.base import BackendInstance, InstanceSpec, ModelSpec
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import Unavailable, with_advice

if TYPE_CHECKING:
    from .opener import Opener

_COMPILED_PLATFORM = "torch_aoti"
#: environment variables that torch reads; one that the operator has set stays
_VARIABLES = {
    # torch.load reads pickles of weights only, also where torch itself asks for more: a pickle can run any code
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    # code of AOTInductor checks its inputs, and else reads whatever memory a wrong shape leads to
    "AOTI_RUNTIME_CHECK_INPUTS": "1",
    # threads of a run wait for each other by polling: some microseconds, not the millisecond that is the default. While
    # they poll they take the cores from the thread that they wait for, where other work runs beside them
    "GOMP_SPINCOUNT": "5000",
}
#: of OpenMP itself, which says how threads wait, too
_WAIT_POLICY = "OMP_WAIT_POLICY"


class PyTorchBackend:
    """One version of a PyTorch model.

    Raises:
        Unavailable: torch is not installed, or does not load.
    """

    def __init__(self) -> None:
        import_torch()
        self._opener: Opener | None = None

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the configuration with the model's own inputs and outputs filled in, where its file tells them.

        Raises:
            Internal, InvalidArgument, Unavailable: the file does not load, or contradicts the configuration.
        """
        config = spec.config
        if (config.get("input") or config.get("batch_input")) and config.get("output"):
            return config
        return self._open(spec).complete(spec)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[BackendInstance]:
        """Load the model.

        Raises:
            Internal, InvalidArgument, Unavailable: with the reason.
        """
        return [*self._open(spec).open(spec, instances)]

    def close(self) -> None:
        """Release what the instances shared."""
        if self._opener is not None:
            self._opener.close()

    def _open(self, spec: ModelSpec) -> Opener:
        if self._opener is None:
            path = model_path(spec)
            from .opener import Opener

            self._opener = Opener(path)
        return self._opener


def model_path(spec: ModelSpec) -> Path:
    """Return the model's file: what `default_model_filename` names, else model.pt or model.pt2.

    Raises:
        Unavailable: there is none.
    """
    name = spec.config.get("default_model_filename")
    names = ["model.pt", "model.pt2"]
    if spec.config.get("platform") == _COMPILED_PLATFORM:
        names.reverse()
    paths = [spec.version_directory / one for one in ([name] if name else names)]
    for path in paths:
        if path.is_file():
            return path
    text = f"unable to find '{paths[0]}' for model instance '{spec.name}'"
    raise Unavailable(with_advice(text, advice_on_file(paths[0].parent, paths[0].name, spec.name)))


def set_variables(environ: MutableMapping[str, str]) -> None:
    """Set the variables that torch and its libraries read when they are loaded."""
    for name, value in _VARIABLES.items():
        if name != "GOMP_SPINCOUNT" or _WAIT_POLICY not in environ:
            environ.setdefault(name, value)


def import_torch() -> None:
    """Import torch with the variables that it reads.

    Raises:
        Unavailable: it is not installed, or does not load.
    """
    set_variables(os.environ)
    try:
        _import()
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    except (ImportError, OSError, ValueError) as error:  # a library of the system or of CUDA
        raise Unavailable(
            f"backend 'pytorch' cannot load torch: {error}; install it again with all that it needs, or its build for "
            f"the CPU: {_pip('torch --index-url https://download.pytorch.org/whl/cpu')}"
        ) from error


def _import() -> None:
    import torch  # noqa: F401


def _missing(error: ModuleNotFoundError) -> Unavailable:
    return Unavailable(
        f"backend 'pytorch' needs the module '{error.name}', which is not installed: edge-serve pack install pytorch, "
        f"or {_pip(error.name or 'torch')}"
    )


def _pip(what: str) -> str:
    return f"{sys.executable} -m pip install {what}"


#: the name that `backends.loader` looks for
Backend = PyTorchBackend
