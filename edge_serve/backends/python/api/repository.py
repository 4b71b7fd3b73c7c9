"""`load_model`, `unload_model`, `is_model_ready`: the repository in the hands of a model.

Contract and texts: triton-inference-server/python_backend src/model_loader.cc.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge_serve.backends import host
from edge_serve.backends.python.api.errors import TritonModelException, as_flag, as_text
from edge_serve.errors import EdgeServeError


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model; `files` maps `file:<version>/<name>` to contents.

    Raises:
        TritonModelException: it does not load.
    """
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    try:
        host.current().load_model(as_text("model_name", model_name), as_text("config", config), files or {})
    except EdgeServeError as error:
        raise TritonModelException(f"Failed to load model: {error.message}") from error


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model.

    Raises:
        TritonModelException: it cannot be done.
    """
    try:
        host.current().unload_model(as_text("model_name", model_name), as_flag("unload_dependents", unload_dependents))
    except EdgeServeError as error:
        raise TritonModelException(f"Failed to unload model: {error.message}") from error


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether the model accepts requests; version "" is the highest.

    Raises:
        TritonModelException: the version is not a number above 0, or it cannot be asked.
    """
    model_version = as_text("model_version", model_version)
    if model_version and not (model_version.isascii() and model_version.isdigit()):
        raise TritonModelException(
            "Failed to check model readiness: failed to get model version from specified version string "
            f"'{model_version}' (details: stol), version should be an integral value > 0"
        )
    try:
        return host.current().is_model_ready(as_text("model_name", model_name), model_version)
    except EdgeServeError as error:
        raise TritonModelException(f"Failed to check model readiness: {error.message}") from error
