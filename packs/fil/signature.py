"""The tensors of a model: completes a configuration from the forest, and checks that the two agree.

Names and shapes: triton-inference-server/fil_backend docs/model_config.md. Responses leave out the dimensions of 1 that
`dims` has behind the batch, as Triton's do (`squeeze_output`, src/shared_state.h). Text of a wrong type:
rapidsai/rapids-triton cpp/include/rapids_triton/triton/input.hpp.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_serve.errors import Internal, InvalidArgument, Unsupported, with_advice
from edge_serve.messages.tensors import BY_CONFIG_NAME, DataType

from .forest import Facts
from .settings import ForestSettings

INPUT, OUTPUT, SHAP = "input__0", "output__0", "treeshap_output"
#: of a configuration that tells none: trees are quick, and a row is small
DEFAULT_MAX_BATCH_SIZE = 8192
_TYPES = (DataType.FP32, DataType.FP64)


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An output of the configuration.

    Attributes:
        shape: of one row in a response.
        width: values of one row.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The part of the configuration that a batch needs.

    Attributes:
        batches: the first dimension counts rows.
        is_classifier: `output__0` is a class, or a score for each class.
    """

    batches: bool
    is_classifier: bool
    outputs: tuple[OutputPlan, ...]


def complete(config: Mapping[str, Any], facts: Facts, settings: ForestSettings, default: int) -> dict[str, Any]:
    """Return the configuration with what it leaves out: tensors, and how many rows a batch may have.

    Args:
        default: max_batch_size of a configuration that has neither tensors nor a number.
    """
    result = copy.deepcopy(dict(config))
    has_tensors = bool(result.get("input") or result.get("output"))
    if not result.get("max_batch_size") and not has_tensors:
        result["max_batch_size"] = max(default, 0)
    rows = [] if result.get("max_batch_size") else [-1]
    if result.get("max_batch_size", 0) > 1 and not ("sequence_batching" in result or "dynamic_batching" in result):
        result["dynamic_batching"] = {}
    if not result.get("input"):
        result["input"] = [{"name": INPUT, "data_type": "TYPE_FP32", "dims": [*rows, facts.features]}]
    if not result.get("output"):
        dims = [*rows, *_natural_dims(facts, settings)]
        result["output"] = [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": dims}]
    return result


def make_plan(config: Mapping[str, Any], facts: Facts, settings: ForestSettings) -> Plan:
    """Check the configuration against the forest.

    Raises:
        InvalidArgument, Internal, Unsupported: they differ.
    """
    is_classifier = facts.is_classifier if settings.is_classifier is None else settings.is_classifier
    if facts.targets > 1 and is_classifier:
        advice = f"the file has {facts.targets}: train a model for each target"
        raise Unsupported(with_advice("Multi-target model not supported", advice))
    batches = int(config.get("max_batch_size", 0)) > 0
    _check_input(config, facts, batches)
    outputs = {str(one["name"]): one for one in config.get("output", ())}
    if OUTPUT not in outputs:
        raise Internal(_no_output(outputs))
    plans = []
    for name, entry in outputs.items():
        dims, datatype = _dims(entry, batches), _datatype(entry, "output")
        if name == OUTPUT:
            _check_answers(dims, facts, settings, is_classifier)
        elif name == SHAP and facts.targets > 1:
            raise Unsupported(f"Multi-target model not yet supported; remove '{SHAP}' from config.pbtxt")
        elif name == SHAP:
            _check_shap(dims, facts)
        else:
            allowed = f"'{OUTPUT}' and '{SHAP}'"
            raise InvalidArgument(f"unexpected output '{name}', expected {allowed}: remove it from config.pbtxt")
        if -1 in dims:
            dims = tuple(_natural_dims(facts, settings) if name == OUTPUT else _shap_dims(facts))
        plans.append(OutputPlan(name, datatype, tuple(dim for dim in dims if dim != 1), math.prod(dims)))
    return Plan(batches, is_classifier, tuple(plans))


def _natural_dims(facts: Facts, settings: ForestSettings) -> list[int]:
    is_classifier = facts.is_classifier if settings.is_classifier is None else settings.is_classifier
    if not is_classifier:
        return [facts.targets, facts.classes] if facts.targets > 1 < facts.classes else [facts.targets * facts.classes]
    return [max(facts.classes, 2)] if settings.predict_proba else [1]


def _check_input(config: Mapping[str, Any], facts: Facts, batches: bool) -> None:
    inputs = config.get("input", ())
    names = [str(one["name"]) for one in inputs]
    if names != [INPUT]:
        listed = ", ".join(f"'{name}'" for name in names) or "none"
        raise InvalidArgument(f"expected one input, named '{INPUT}', and config.pbtxt has {listed}")
    if inputs[0].get("optional"):
        raise InvalidArgument(f"input '{INPUT}' is optional in config.pbtxt, and the only one: remove optional")
    _datatype(inputs[0], "input")
    dims = _dims(inputs[0], batches)
    is_row = batches or dims[:-1] in ((), (1,))  # without batching, the first of several dimensions counts rows
    if -1 in dims or (is_row and math.prod(dims) == facts.features):
        return
    raise InvalidArgument(
        f"input '{INPUT}' has dims {list(dims)} in config.pbtxt, and the model has {facts.features} features: write "
        f"dims: [ {facts.features} ]"
    )


def _check_answers(dims: Sequence[int], facts: Facts, settings: ForestSettings, is_classifier: bool) -> None:
    natural = _natural_dims(facts, settings)
    found, wanted = math.prod(dims), math.prod(natural)
    scores_of_one = is_classifier and settings.predict_proba and facts.classes == 1
    if -1 in dims or found == wanted or (scores_of_one and found == 1):
        return
    values = f"{wanted} value{'s' * (wanted != 1)} for each row"
    advice = f"write dims: [ {', '.join(map(str, natural))} ]"
    if is_classifier and not settings.predict_proba and found == max(facts.classes, 2):
        advice = f'{advice} for the class, or predict_proba "true" for the scores of {found} classes'
    elif not is_classifier and facts.is_classifier:
        advice = f'{advice}, or is_classifier "true"'
    raise InvalidArgument(
        f"output '{OUTPUT}' has dims {list(dims)} in config.pbtxt, and the model has {values}: {advice}"
    )


def _shap_dims(facts: Facts) -> list[int]:
    return [facts.features + 1] if facts.classes == 1 else [facts.classes, facts.features + 1]


def _check_shap(dims: Sequence[int], facts: Facts) -> None:
    wanted = _shap_dims(facts)
    if -1 not in dims and math.prod(dims) != math.prod(wanted):
        raise InvalidArgument(
            f"output '{SHAP}' has dims {list(dims)} in config.pbtxt, expected a value for each of {facts.features} "
            f"features and one for the mean: write dims: [ {', '.join(map(str, wanted))} ]"
        )


def _dims(entry: Mapping[str, Any], batches: bool) -> tuple[int, ...]:
    """Return the dimensions of one row; the first one of a model without batching counts rows where it is variable."""
    reshape = entry.get("reshape")
    dims = tuple(int(dim) for dim in (entry.get("dims", ()) if reshape is None else reshape.get("shape", ())))
    return dims[1:] if not batches and dims[:1] == (-1,) and len(dims) > 1 else dims


def _datatype(entry: Mapping[str, Any], side: str) -> DataType:
    datatype = BY_CONFIG_NAME.get(str(entry.get("data_type")))
    if datatype not in _TYPES:
        found = datatype.name if datatype is not None else entry.get("data_type")
        advice = (
            f"{side} '{entry['name']}' is {entry.get('data_type')} in config.pbtxt, expected TYPE_FP32 (or TYPE_FP64): "
            "categories and whole numbers are sent as floating-point numbers"
        )
        raise InvalidArgument(with_advice(f"incorrect type {found} for {side} with required type FP32", advice))
    return datatype


def _no_output(outputs: Mapping[str, object]) -> str:
    text = f"No output with name {OUTPUT} in configuration."
    return with_advice(text, f"Config.pbtxt has {', '.join(outputs) or 'none'}")
