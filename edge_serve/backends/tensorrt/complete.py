"""Auto-completion of a configuration from an engine.

On Triton's JSON as plain dicts. Follows tensorrt_backend src/model_state.cc, texts included: the engine's profiles give
the largest batch, and the dims that the configuration does list are a hint whether it means to batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from edge_serve.backends.tensorrt.engine import EngineInfo, Profile, TensorInfo
from edge_serve.backends.tensorrt.profiles import group_profiles, profile_index
from edge_serve.config.model.complete import config_dims
from edge_serve.errors import Internal, InvalidArgument, with_advice
from edge_serve.messages.tensors import shape_text

Json = Mapping[str, Any]

_SIDES = ("input", "output")
_UNSET_TYPES = ("", "TYPE_INVALID")


def complete_tensorrt(config: Json, engine: EngineInfo) -> dict[str, Any]:
    """Return a copy of `config` with absent dims, types, marks, `max_batch_size`, and `dynamic_batching` filled in.

    Raises:
        InvalidArgument, Internal: the configuration contradicts the engine.
    """
    result = copy.deepcopy(dict(config))
    largest = _largest_batch(result, engine)
    _complete_batching(result, _batch_limit(result, engine, largest))
    batching = result["max_batch_size"] > 0
    for side in _SIDES:
        tensors = [tensor for tensor in engine.tensors if tensor.is_input == (side == "input")]
        if not result.get(side):
            named = _named_elsewhere(result) if side == "input" else set()
            result[side] = [_describe(tensor, side, batching, result) for tensor in tensors if tensor.name not in named]
        else:
            for entry in result[side]:
                found = next((tensor for tensor in tensors if tensor.name == entry.get("name")), None)
                if found is not None:
                    _fix(entry, found, _describe(found, side, batching, result))
    return result


def largest_batch(profile: Profile, engine: EngineInfo) -> int:
    """Return the largest batch of a profile: the least of its inputs' largest first dimensions, or first values."""
    found = []
    for tensor in engine.inputs:
        spans = profile.values if tensor.is_shape else profile.shapes
        span = spans.get(tensor.name)
        found.append(span.max[0] if span is not None and span.max else 0)  # a scalar has no batch
    return max(0, min(found, default=0))


def check_allowed(entry: Json, side: str, engine: EngineInfo) -> TensorInfo:
    """Return the tensor that an entry of `input` or `output` is for.

    Raises:
        InvalidArgument: the engine has none of this name.
    """
    tensors = engine.inputs if side == "input" else engine.outputs
    name = entry.get("name", "")
    found = next((tensor for tensor in tensors if tensor.name == name), None)
    if found is not None:
        return found
    allowed = ", ".join(sorted(tensor.name for tensor in tensors))
    text = f"unexpected inference {side} '{name}', allowed {side}s are: {allowed}"
    raise InvalidArgument(with_advice(text, f'write name: "{tensors[0].name}"' if len(tensors) == 1 else ""))


def unsupported_type(data_type: str, side: str, tensor: TensorInfo, config: Json) -> Internal:
    """Return the error for a tensor of a type that cannot be served."""
    return Internal(
        f"unsupported datatype {data_type} for {side} '{tensor.name}' for model '{config.get('name', '')}'; the engine "
        f"has it as {tensor.kind}: build it with FP32, FP16, BF16, INT8, UINT8, INT32, INT64, or BOOL there"
    )


def _largest_batch(config: Json, engine: EngineInfo) -> int:
    """Return the largest batch over the profiles of all instance groups."""
    indices = {}
    for name in group_profiles(config) or ["0"]:
        index = profile_index(name)
        if not 0 <= index < len(engine.profiles):
            raise Internal(
                f"unable to autofill for '{config.get('name', '')}', configuration specified invalid profile {name} . "
                f"Number of profiles supported by TensorRT engine: {len(engine.profiles)}"
            )
        indices[index] = largest_batch(engine.profiles[index], engine)
    return max(indices.values())


def _named_elsewhere(config: Json) -> set[str]:
    """Return the inputs that are no inputs of a request: controls, states, and batch inputs.

    Triton lists them as inputs too, and its checks then fail.
    """
    sequence = config.get("sequence_batching") or {}
    named = {str(control.get("name")) for control in sequence.get("control_input") or ()}
    named |= {str(state.get("input_name")) for state in sequence.get("state") or ()}
    return named | {str(name) for batch in config.get("batch_input") or () for name in batch.get("target_name") or ()}


def _batch_limit(config: Json, engine: EngineInfo, largest: int) -> int:
    """Return the largest batch that the engine has for this configuration, whose dims hint whether it batches."""
    model = config.get("name", "")
    hint = _batch_hint(config, engine)
    if hint and not largest:
        raise Internal(
            f"autofill failed for model '{model}': model tensor shape configuration hints for dynamic batching but the "
            "underlying engine doesn't support batching."
        )
    return 0 if hint is False else largest


def _batch_hint(config: Json, engine: EngineInfo) -> bool | None:
    """Return whether the dims that the configuration lists are without a batch dimension; None = it lists none.

    A tensor of a ragged batch says that the model batches, and those after it are not looked at.
    """
    hints = []
    for side in _SIDES:
        for entry in config.get(side) or ():
            if entry.get("allow_ragged_batch"):
                return True
            dims, found = config_dims(entry), check_allowed(entry, side, engine)
            if dims:
                hints.append(_is_without_batch(dims, found))
    # Triton notices the contradiction only where the tensor that batches comes first; its checks then fail
    if len(set(hints)) > 1:
        raise Internal(
            f"unable to autofill for '{config.get('name', '')}', model tensor configurations are contradicting each "
            f"other in terms of whether batching is supported; the engine has {_shapes(engine)}"
        )
    return hints[0] if hints else None


def _is_without_batch(dims: Sequence[int], tensor: TensorInfo) -> bool:
    """Return whether dims lack the batch dimension of a tensor, or the batch among the values of a shape tensor."""
    if tensor.is_shape:
        return bool(tensor.shape) and tensor.shape[0] == dims[0] + 1
    return len(tensor.shape) == len(dims) + 1


def _complete_batching(config: dict[str, Any], limit: int) -> None:
    given = config.get("max_batch_size", 0)
    if given > limit:
        raise Internal(
            f"autofill failed for model '{config.get('name', '')}': configuration specified max-batch {given} but "
            f"TensorRT engine only supports max-batch {limit}; write max_batch_size: {limit}, or build the engine "
            f"with a profile of {given}"
        )
    config["max_batch_size"] = given or limit
    if limit > 1 and not ("sequence_batching" in config or "dynamic_batching" in config):
        config["dynamic_batching"] = {}


def _describe(tensor: TensorInfo, side: str, batching: bool, config: Json) -> dict[str, Any]:
    """Return the entry of `input` or `output` for a tensor; one without dims is dims [1] with an empty reshape."""
    if not tensor.data_type:
        raise unsupported_type("TYPE_INVALID", side, tensor, config)
    entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type}
    dims = list(tensor.shape)
    if tensor.is_shape and batching and dims:
        dims[0] -= 1 if dims[0] > 0 else 0  # the batch is the first value
    elif not tensor.is_shape and batching:
        del dims[:1]
    entry["dims"] = dims or [1]
    if not dims:
        entry["reshape"] = {"shape": []}
    entry["is_shape_tensor"] = tensor.is_shape
    entry["is_non_linear_format_io"] = not tensor.is_linear
    return entry


def _fix(entry: dict[str, Any], tensor: TensorInfo, found: Json) -> None:
    """Fill in the type, dims, and marks that an entry leaves out.

    Raises:
        InvalidArgument: it marks a tensor that the engine has otherwise.
    """
    if entry.get("data_type", "") in _UNSET_TYPES:
        entry["data_type"] = found["data_type"]
    if not entry.get("dims"):
        entry["dims"] = found["dims"]
        if "reshape" in found:
            entry["reshape"] = found["reshape"]
    if entry.get("is_shape_tensor") and not tensor.is_shape:
        raise InvalidArgument(f"'{tensor.name}' is incorrectly specified as a shape tensor.")
    entry["is_shape_tensor"] = tensor.is_shape
    if entry.get("is_non_linear_format_io") and tensor.is_linear:
        raise InvalidArgument(
            f"'{tensor.name}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the "
            "model configuration."
        )
    entry["is_non_linear_format_io"] = not tensor.is_linear


def _shapes(engine: EngineInfo) -> str:
    return ", ".join(f"{tensor.name} {shape_text(tensor.shape)}" for tensor in engine.tensors)
