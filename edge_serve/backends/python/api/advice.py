"""Advice on exceptions of a model's code whose own text does not lead to the fix."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

#: modules whose packages have other names
_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "google": "protobuf", "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
#: attributes that a model asks of a tensor, and so of the None that it received in place of one
_OF_TENSOR = frozenset({"as_numpy", "is_cpu", "name", "shape", "to_dlpack", "triton_dtype"})
#: the call of a method itself failed: its parameters are not those that the server passes
_CALL = re.compile(r"\b(execute|initialize|auto_complete_config)\(\) (?:takes|missing) ")
_NO_ARRAY = re.compile(r"incompatible constructor arguments\..* c_python_backend_utils\.Tensor\(", re.DOTALL)
_SIGNATURES = {
    "execute": "def execute(self, requests)",
    "initialize": "def initialize(self, args)",
    "auto_complete_config": "@staticmethod def auto_complete_config(config)",
}

_missing_tensor = ""
_model_directory = ""


def set_model_dir(directory: str) -> None:
    """Set the directory of model.py."""
    global _model_directory
    _model_directory = directory


def get_model_dir() -> str:
    """Return the directory of the model's file."""
    return _model_directory


def note_missing(kind: str, name: str, there: Iterable[str]) -> None:
    """Note that a model asked for a tensor that is not there: the None that it receives may fail it."""
    global _missing_tensor
    names = ", ".join(sorted(there)) or "none"
    owner = "request" if kind == "input" else "response"
    _missing_tensor = (
        f"the {owner} has no {kind} '{name}' (get_{kind}_tensor_by_name returned None): its {kind}s are {names}; use "
        "one of these names in model.py (an optional input that the client left out is None, too)"
    )


def clear_missing() -> None:
    """Clear the note of an earlier batch, which says the names of tensors of other requests."""
    global _missing_tensor
    _missing_tensor = ""


def advice_on(error: BaseException, text: str, *, in_call: bool) -> str:
    """Return what to do about an exception of a model; "" = its text says enough.

    Args:
        text: its own text.
        in_call: no line of the model ran: the call of its method failed.
    """
    match error:
        case SyntaxError(filename=str(path), lineno=int(line), text=str(source)) if source.strip():
            return f"{path}, line {line} reads: {source.strip()!r}"
        case ModuleNotFoundError():
            return _advice_on_module(error)
        case FileNotFoundError():
            return _advice_on_file(error)
        case AttributeError(name=str(name), obj=None) if name in _OF_TENSOR:
            return _missing_tensor
        case TypeError() if in_call and (found := _CALL.search(text)):
            return f"write it as {_SIGNATURES[found[1]]}"
        case TypeError() if _NO_ARRAY.search(text):
            return "pb_utils.Tensor takes a NumPy array: np.asarray(value), or of PyTorch value.numpy(force=True)"
    return ""


def _advice_on_module(error: ModuleNotFoundError) -> str:
    """Return how to get a module that a model imports."""
    top, _, rest = (error.name or "").partition(".")
    if top.isdecimal():  # the model's own package, which is named by the version
        if not hasattr(sys.modules.get((error.name or "").rpartition(".")[0]), "__path__"):
            return ""  # "not a package": the text says it, and no further file would help
        return f"put {rest.replace('.', '/')}.py into {_model_directory}, with this spelling"
    if not top or top in sys.stdlib_module_names:
        return ""
    package = _PACKAGES.get(top, top)
    return (
        f"install it for the Python that runs the model: {sys.executable} -m pip install {package}; or name an "
        "environment that has it in the parameter EXECUTION_ENV_PATH; if it is a file of yours, put it beside model.py"
    )


def _advice_on_file(error: FileNotFoundError) -> str:
    """Return how to name a file of the model: a relative path starts at the server's directory, not at model.py."""
    name = error.filename
    if not isinstance(name, str) or not name or os.path.isabs(name):
        return ""
    places = [place for place in ("", os.pardir) if os.path.exists(os.path.join(_model_directory, place, name))]
    path = ", ".join(["pb_utils.get_model_dir()", *(repr(part) for part in (*places[:1], name) if part)])
    start = f"a relative path starts at the working directory, {os.getcwd()}, "
    if places:
        there = os.path.normpath(os.path.join(_model_directory, places[0], name))
        return f"{start}but the file is {there}: open os.path.join({path})"
    return f"{start}not at model.py: put the file beside model.py and open os.path.join({path})"
