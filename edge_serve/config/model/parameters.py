"""Model parameters of our own in a model's `config.pbtxt`, named `EDGE_SERVE_<NAME>`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.errors import InvalidArgument

Value = TypeVar("Value")


def parameter(config: ModelConfig, name: str, read: Callable[[str], Value], default: Value, expected: str) -> Value:
    """Return a model parameter as `read` understands its text; `default` if the configuration does not have it.

    Args:
        read: raises KeyError or ValueError for a text that it does not understand.
        expected: the texts that it understands, for the error.

    Raises:
        InvalidArgument: `read` does not understand the text.
    """
    if name not in config.parameters:
        return default
    text = config.parameters[name].string_value
    try:
        return read(text)
    except (KeyError, ValueError):
        raise InvalidArgument(f"parameter {name} of model '{config.name}' is '{text}', expected {expected}") from None
