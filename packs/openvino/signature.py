"""A model's tensors beside those of the configuration, and the shapes and types that it is compiled with.

Pure, without the library. Texts: triton-inference-server/openvino_backend src/openvino.cc, and backend
src/backend_common.cc, whose checks of dimensions Triton's ONNX Runtime backend has too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_serve.config.model.complete import DEFAULT_MAX_BATCH_SIZE, FoundTensor, check_onnx, complete_onnx, config_dims
from edge_serve.errors import Internal

from .settings import OpenVinoSettings

Json = dict[str, Any]
Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model, by its position there.

    Attributes:
        names: all names of the tensor; the first is the one that a configuration gets which names none.
        data_type: in the words of config.pbtxt; "" for a type that cannot be served.
        dims: -1 for a variable one; None if even their number is variable.
        has_batch: the model's layout says that the first dimension is the batch.
    """

    names: tuple[str, ...]
    data_type: str
    dims: Dims | None
    kind: str = ""
    has_batch: bool = False


def completed(
    config: Mapping[str, Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    most: int | None,
    declared: Sequence[str] = (),
) -> Json:
    """Return the configuration with the model's own inputs and outputs, and whether it batches.

    A model that batches only because the configuration says so gets no dynamic batcher, as in Triton.

    Args:
        most: `max_batch_size` of a model that batches; None = the default.
        declared: further names that the configuration may have for them.

    Raises:
        InvalidArgument, Internal: the model cannot be served so.
    """
    found = (
        [_as_found(port, config, "input", declared) for port in inputs],
        [_as_found(port, config, "output", declared) for port in outputs],
    )
    result = complete_onnx(config, *found, DEFAULT_MAX_BATCH_SIZE if most is None else most)
    if not all(_batches(port) for port in (*inputs, *outputs)) and "dynamic_batching" not in config:
        result.pop("dynamic_batching", None)
    return result


def check(config: Mapping[str, Any], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Check that the configuration names the tensors of the reshaped model, with shapes that it takes.

    Types may differ: the library converts them.

    Raises:
        InvalidArgument, Internal: with the texts of Triton.
    """
    check_onnx(
        config,
        [_as_declared(port, config, "input") for port in inputs],
        # one that is not listed may have any form
        [
            _as_declared(port, config, "output")
            for port in outputs
            if port.dims is not None or _entry(port, config, "output")
        ],
    )


def shaped_inputs(config: Mapping[str, Any], inputs: Sequence[Port], settings: OpenVinoSettings) -> list[Dims | None]:
    """Return the dims that each input is compiled with, in the model's order; None = as in the model."""
    batch = int(config.get("max_batch_size", 0))
    rows = batch if settings.pads else -1
    shaped: list[Dims | None] = []
    for port in inputs:
        entry = _entry(port, config, "input")
        own = port.dims[1:] if batch and port.dims else port.dims
        dims = config_dims(entry) if entry and (settings.reshapes or own is None) else own
        whole = (rows, *dims) if batch and dims is not None and port.dims != () else dims
        shaped.append(None if whole == port.dims else whole)
    return shaped


def name_in(config: Mapping[str, Any], port: Port, side: str, declared: Sequence[str] = ()) -> str:
    """Return the name by which the configuration knows a tensor of the model; else its own first name."""
    sequence = config.get("sequence_batching") or {}
    known = {str(entry.get("name")) for entry in config.get(side, ())}.union(declared)
    known |= {str(state.get(f"{side}_name")) for state in sequence.get("state", ())}
    if side == "input":
        known |= {str(control.get("name")) for control in sequence.get("control_input", ())}
    known |= {name for batch in config.get(f"batch_{side}", ()) for name in batch.get("target_name", ())}
    return next((name for name in port.names if name in known), port.names[0])


def declared_type(config: Mapping[str, Any], port: Port, side: str) -> str:
    """Return the data type of a tensor in requests and responses, which the library converts from or to."""
    entry = _entry(port, config, side)
    return str(entry.get("data_type") or port.data_type) if entry else port.data_type


def _as_found(port: Port, config: Mapping[str, Any], side: str, declared: Sequence[str] = ()) -> FoundTensor:
    dims = _known_dims(port, config, side)
    if dims and (_batches(port) or int(config.get("max_batch_size", 0)) > 0):
        dims = (-1, *dims[1:])
    return FoundTensor(name_in(config, port, side, declared), port.data_type, dims, port.kind)


def _as_declared(port: Port, config: Mapping[str, Any], side: str) -> FoundTensor:
    """Return a tensor of the model with the type that it is converted to. Strings and numbers are not converted."""
    found, declared = _as_found(port, config, side), declared_type(config, port, side)
    converts = bool(port.data_type) and "TYPE_STRING" not in (declared, port.data_type)
    return replace(found, data_type=declared) if converts else found


def _batches(port: Port) -> bool:
    """Return whether the model itself says that the first dimension of a tensor is the batch."""
    return port.has_batch or (port.dims or ())[:1] == (-1,)


def _known_dims(port: Port, config: Mapping[str, Any], side: str) -> Dims:
    """Raises Internal: neither the model nor the configuration tells how many dimensions a tensor has."""
    if port.dims is not None:
        return port.dims
    if entry := _entry(port, config, side):
        return (-1, *config_dims(entry)) if int(config.get("max_batch_size", 0)) > 0 else config_dims(entry)
    raise Internal(
        f"the model does not tell how many dimensions its {side} '{port.names[0]}' has: list its inputs and outputs "
        "with their dims in config.pbtxt"
    )


def _entry(port: Port, config: Mapping[str, Any], side: str) -> Mapping[str, Any] | None:
    """Return the entry of `input` or `output` for a tensor, which may have several names."""
    return next((entry for entry in config.get(side, ()) if entry.get("name") in port.names), None)
