"""Auto-completion from an ONNX model's own inputs and outputs, and the check that model and configuration agree.

On Triton's JSON as plain dicts, because this runs on the worker's side: the standard library only. Follows
onnxruntime_backend src/onnxruntime.cc; a batch dimension is taken only from a first dimension that is variable in the
model, never guessed from a fixed one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edge_serve.errors import Internal, InvalidArgument, with_advice
from edge_serve.messages.tensors import shape_text
from edge_serve.records import frozen

DEFAULT_MAX_BATCH_SIZE = 4
_WHAT_BATCHES = "batching needs a variable first dimension in every input and output of the model"


@frozen
class FoundTensor:
    """An input or output as the model's file declares it.

    Attributes:
        data_type: in the words of config.pbtxt, `TYPE_FP32`; "" for a type that cannot be served.
        dims: with the batch dimension, -1 for a variable one; () for a scalar.
        kind: of a type that cannot be served, in ONNX Runtime's words.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    kind: str = ""


def complete_onnx(
    config: Mapping[str, Any],
    found_inputs: Sequence[FoundTensor],
    found_outputs: Sequence[FoundTensor],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> dict[str, Any]:
    """Return a copy of `config` with absent inputs, outputs, `max_batch_size` and `dynamic_batching` filled in.

    A configuration that lists inputs and outputs is left as it is: its author has decided.

    Raises:
        InvalidArgument: `max_batch_size` is given and the model cannot batch.
        Internal: a tensor has a type that cannot be served.
    """
    result = copy.deepcopy(dict(config))
    have_inputs = bool(result.get("input") or result.get("batch_input"))
    have_outputs = bool(result.get("output"))
    if have_inputs and have_outputs:
        return result
    if have_outputs:  # those that are not listed are not served, so that they need not be tensors
        listed = {entry.get("name") for entry in result["output"]}
        found_outputs = [tensor for tensor in found_outputs if tensor.data_type or tensor.name in listed]
    _complete_batching(result, found_inputs, found_outputs, default_max_batch_size)
    batching = result.get("max_batch_size", 0) > 0
    if not have_inputs:
        result["input"] = [_describe(tensor, "input", batching, result) for tensor in found_inputs]
    if not have_outputs:
        result["output"] = [_describe(tensor, "output", batching, result) for tensor in found_outputs]
    return result


def _complete_batching(
    config: dict[str, Any], inputs: Sequence[FoundTensor], outputs: Sequence[FoundTensor], default: int
) -> None:
    given = config.get("max_batch_size", 0)
    if not all(tensor.dims[:1] == (-1,) for tensor in [*inputs, *outputs]):
        if given:
            raise InvalidArgument(
                f"autofill failed for model '{config.get('name', '')}': model does not support batching while non-zero "
                f"max_batch_size is specified ({_WHAT_BATCHES}; the model has {_shapes([*inputs, *outputs])}): write "
                "max_batch_size: 0, or export the model with a variable first dimension"
            )
        return
    if not given and not _spells_out_batch(config, inputs, outputs):
        config["max_batch_size"] = max(default, 0)
    if config.get("max_batch_size", 0) > 1 and not ("sequence_batching" in config or "dynamic_batching" in config):
        config["dynamic_batching"] = {}


def _spells_out_batch(config: Mapping[str, Any], inputs: Sequence[FoundTensor], outputs: Sequence[FoundTensor]) -> bool:
    """Return whether a listed tensor has as many dims as the model's, so that its author wants no batching."""
    ranks = {("input", t.name): len(t.dims) for t in inputs} | {("output", t.name): len(t.dims) for t in outputs}
    return any(
        ranks.get((side, tensor.get("name", ""))) == len(config_dims(tensor))
        for side in ("input", "output")
        for tensor in config.get(side, ())
    )


def _describe(tensor: FoundTensor, side: str, batching: bool, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of `input` or `output`. A scalar has dims [1], and an empty reshape if the model batches."""
    if not tensor.data_type:
        raise Internal(_unsupported("", side, tensor, config))
    entry: dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type}
    dims = list(tensor.dims[1:] if batching else tensor.dims)
    entry["dims"] = dims or [1]
    if not dims and batching:
        entry["reshape"] = {"shape": []}
    return entry


def check_onnx(
    config: Mapping[str, Any],
    found_inputs: Sequence[FoundTensor],
    found_outputs: Sequence[FoundTensor],
    overridable: Sequence[FoundTensor] = (),
) -> None:
    """Check that the configuration has the names, types and shapes of the model's own tensors.

    Args:
        overridable: initialisers that a request may replace: allowed as inputs, not required.

    Raises:
        InvalidArgument, Internal: with the text of Triton's ONNX Runtime backend.
    """
    model = config.get("name", "")
    inputs = {tensor.name: tensor for tensor in found_inputs}
    outputs = {tensor.name: tensor for tensor in found_outputs}
    _check_input_count(config, inputs, {tensor.name for tensor in overridable})
    inputs |= {tensor.name: tensor for tensor in overridable}
    for entry in config.get("input", ()):
        _check_optional(entry, model, config.get("max_batch_size", 0))
        found = _check_named_and_typed(entry, "input", inputs, config)
        if entry.get("allow_ragged_batch"):
            _check_ragged(found, model)
        else:
            _check_dims(entry, found, model, config.get("max_batch_size", 0), exact=False)
    scattered = {name for batch in config.get("batch_output", ()) for name in batch.get("target_name", ())}
    for entry in config.get("output", ()):
        found = _check_named_and_typed(entry, "output", outputs, config)
        # a scattered output's shape comes from the inputs of each request
        if entry["name"] not in scattered:
            _check_dims(entry, found, model, config.get("max_batch_size", 0), exact=True)


def _check_input_count(config: Mapping[str, Any], provided: Mapping[str, FoundTensor], overridable: set[str]) -> None:
    """Check that inputs, batch inputs, control tensors and states together are as many as the model's inputs."""
    listed = config.get("input", ())
    named = [entry["name"] for entry in listed if not entry.get("optional") and entry["name"] not in overridable]
    named += [name for batch in config.get("batch_input", ()) for name in batch.get("target_name", ())]
    sequence = config.get("sequence_batching", {})
    named += [tensor.get("name", "") for tensor in sequence.get("control_input", ())]
    named += [state.get("input_name", "") for state in sequence.get("state", ())]
    if len(named) != len(provided):
        raise InvalidArgument(
            f"unable to load model '{config.get('name', '')}', configuration expects {len(named)} inputs, model "
            f"provides {len(provided)}; the model's inputs are {', '.join(provided)}, config.pbtxt has "
            f"{', '.join(named) or 'none'}"
        )


def _check_optional(entry: Mapping[str, Any], model: str, max_batch_size: int) -> None:
    if not entry.get("optional"):
        return
    if max_batch_size:
        raise InvalidArgument(
            f"unable to load model '{model}', optional input '{entry['name']}' is not supported for models that "
            "support batching"
        )
    if entry.get("allow_ragged_batch"):
        raise InvalidArgument(
            f"unable to load model '{model}', configuration expects model provides input with shape [-1] for ragged "
            f"input '{entry['name']}', which is not supported for optional input"
        )


def _check_named_and_typed(
    entry: Mapping[str, Any], side: str, found: Mapping[str, FoundTensor], config: Mapping[str, Any]
) -> FoundTensor:
    name, data_type = entry["name"], entry["data_type"]
    if name not in found:
        text = f"unexpected inference {side} '{name}', allowed {side}s are: {', '.join(sorted(found))}"
        advice = f'write name: "{next(iter(found))}" in config.pbtxt' if len(found) == 1 else ""
        raise InvalidArgument(with_advice(text, advice))
    tensor = found[name]
    if not tensor.data_type:
        raise Internal(_unsupported(data_type, side, tensor, config))
    if data_type != tensor.data_type:
        # Triton says TYPE_BYTES here, after the wire's name of the type
        provided = "TYPE_BYTES" if tensor.data_type == "TYPE_STRING" else tensor.data_type
        raise InvalidArgument(
            f"unable to load model '{config.get('name', '')}', configuration expects datatype {data_type} for {side} "
            f"'{name}', model provides {provided}; write data_type: {tensor.data_type}"
        )
    return tensor


def _unsupported(data_type: str, side: str, tensor: FoundTensor, config: Mapping[str, Any]) -> str:
    words = f"unsupported datatype {data_type}" if data_type else "unsupported datatype"
    text = f"{words} for {side} '{tensor.name}' for model '{config.get('name', '')}'"
    if tensor.kind.startswith("seq(map("):
        text += "; it is a sequence of maps (scikit-learn's ZipMap): export with options={'zipmap': False}"
    elif tensor.kind:
        text += f"; it is of type {tensor.kind}, expected a tensor: export the model with tensors only"
    if side == "output" and tensor.kind:
        text += ", or list only the other outputs in config.pbtxt"
    return text


def _check_ragged(found: FoundTensor, model: str) -> None:
    if found.dims != (-1,):
        raise InvalidArgument(
            f"unable to load model '{model}', configuration expects model provides input with shape [-1]  for ragged "
            f"input '{found.name}', model provides {shape_text(found.dims)}"
        )


def _check_dims(entry: Mapping[str, Any], found: FoundTensor, model: str, max_batch_size: int, *, exact: bool) -> None:
    """Compare shapes; a variable dimension of an input may be narrowed by the configuration, an output's must not."""
    dims = config_dims(entry)
    where = f"model '{model}', tensor '{found.name}'"
    if max_batch_size > 0 and found.dims[:1] != (-1,):
        raise InvalidArgument(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {shape_text(found.dims)}; write "
            f"max_batch_size: 0 and dims: {pbtxt_dims(found.dims or (1,))}, or export the model with a variable first "
            "dimension"
        )
    if not found.dims:
        _check_scalar(found.name, dims, model)
        return
    full = (-1, *dims) if max_batch_size > 0 else dims
    if _fits(found.dims, full, exact):
        return
    first, wanted = "", found.dims
    if max_batch_size > 0:
        first = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
        first, wanted = f"{first}complete ", wanted[1:]
    raise InvalidArgument(
        f"{where}: the model expects {len(found.dims)} dimensions (shape {shape_text(found.dims)}) but the model "
        f"configuration specifies {len(full)} dimensions ({first}shape {shape_text(full)}); "
        f"{_advice_on_dims(entry, wanted, full)}"
    )


def _advice_on_dims(entry: Mapping[str, Any], wanted: tuple[int, ...], full: tuple[int, ...]) -> str:
    """Return the dims to write for a tensor whose dims do not fit.

    Args:
        wanted: the model's own dims, without the batch dimension.
        full: the shape that the configuration says.
    """
    dims = tuple(int(dim) for dim in entry.get("dims", ()))
    if wanted and len(full) > len(dims) and dims[1:] == wanted:
        return f"dims must not have the batch dimension: write dims: {pbtxt_dims(wanted)}"
    if sorted(dims) == sorted(wanted):
        return f"the sizes stand in another order: write dims: {pbtxt_dims(wanted)}, the order that the model expects"
    if "reshape" not in entry and -1 not in (*dims, *wanted) and math.prod(dims) == math.prod(wanted):
        if not wanted:
            return "write reshape { shape: [ ] } for it, because the model's tensor has no dimension but the batch"
        return f"write reshape {{ shape: {pbtxt_dims(wanted)} }} for it, or dims: {pbtxt_dims(wanted)}"
    return f"write dims: {pbtxt_dims(wanted)}" if wanted else "write dims: [ 1 ] and reshape { shape: [ ] } for it"


def _check_scalar(name: str, dims: tuple[int, ...], model: str) -> None:
    if any(dim != 1 for dim in dims):
        raise InvalidArgument(
            f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model configuration "
            f"when the model doesn't support batching. Model configuration provided: {shape_text(dims)}."
        )


def _fits(found: tuple[int, ...], dims: tuple[int, ...], exact: bool) -> bool:
    if len(found) != len(dims):
        return False
    return all(have == want or (have == -1 and not exact) for have, want in zip(found, dims, strict=True))


def config_dims(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape that the backend sees of an entry of `input` or `output`: `reshape` where it is given."""
    reshape = entry.get("reshape")
    dims = entry.get("dims", ()) if reshape is None else reshape.get("shape", ())
    return tuple(int(dim) for dim in dims)


def _shapes(tensors: Sequence[FoundTensor]) -> str:
    """Return the tensors that keep a model from batching, as text."""
    return ", ".join(f"{tensor.name} {shape_text(tensor.dims)}" for tensor in tensors if tensor.dims[:1] != (-1,))


def pbtxt_dims(dims: Sequence[int]) -> str:
    """Return dims as config.pbtxt has them: `[ 1, 2 ]`."""
    return f"[ {', '.join(map(str, dims))} ]" if dims else "[ ]"
