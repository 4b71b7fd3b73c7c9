"""Names of the inputs and outputs of a TorchScript model. Pure, without torch.

An input is named after an argument of `forward`, or with its position (`INPUT__0`), or all stand in the order of the
arguments; an output with its position (`OUTPUT__0`), or all stand in order. Rules and texts:
triton-inference-server/pytorch_backend src/pt/model_instance_state.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from edge_serve.errors import Internal, InvalidArgument, with_advice

from .signature import (
    NUMBERS,
    TensorPlaces,
    check_all_required,
    check_some_required,
    check_types,
    controls_of,
    input_names,
    made_names,
    names_of,
    states_of,
)

_PLACE = re.compile(r"(?:(?!__).)*__(\d*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of `forward`.

    Attributes:
        kind: in torch's words, as `TensorType`; text: the type as Python writes it.
    """

    name: str
    kind: str
    text: str


class _Convention(Enum):
    ARGUMENTS, PLACES, ORDER = range(3)


def signature_of(config: Mapping[str, Any], arguments: Sequence[Argument]) -> TensorPlaces:
    """Return the places of a configuration's tensors in a model with these arguments.

    Raises:
        Internal, InvalidArgument: they contradict each other.
    """
    _check_controls(config)
    keyed = len(arguments) == 1 and arguments[0].kind == "DictType"
    if keyed:
        check_some_required(config)
    else:
        check_all_required(config)
        _check_arguments(arguments)
        _check_count(config, arguments)
    inputs = _input_places(config, [] if keyed else [argument.name for argument in arguments])
    if keyed:
        inputs = {name: index for index, name in enumerate(inputs)}
    else:
        _check_places(inputs, arguments)
    outputs = _output_places(config)
    check_types(config, strings=True)
    return TensorPlaces(inputs, outputs, len(inputs) if keyed else len(arguments), keyed)


def place_in(name: str) -> int | None:
    """Return the number after the first `__` of a name; None without one."""
    match = _PLACE.match(name)
    return None if match is None else int(match[1] or 0)


def _check_arguments(arguments: Sequence[Argument]) -> None:
    for argument in arguments[1:]:
        if argument.kind == "DictType":
            raise Internal(
                "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
                "supported."
            )
    for argument in arguments:
        if argument.kind not in ("TensorType", "ListType"):
            raise Internal(
                f"An input of type '{argument.text}' was detected in the model. Only a single input of type "
                "Dict(str, Tensor) or input(s) of type Tensor are supported."
            )


def _check_count(config: Mapping[str, Any], arguments: Sequence[Argument]) -> None:
    names = input_names(config)
    if arguments and len(names) != len(arguments):
        raise InvalidArgument(
            f"unable to load model '{config.get('name', '')}', configuration expects {len(names)} inputs, model "
            f"provides {len(arguments)}; the arguments of forward() are {_named(arguments)}, config.pbtxt has "
            f"{', '.join(names) or 'none'}"
        )


def _check_places(places: Mapping[str, int], arguments: Sequence[Argument]) -> None:
    taken: dict[int, str] = {}
    for name, place in places.items():
        if place >= len(arguments):
            raise InvalidArgument(
                f"input '{name}' refers to argument {place} of forward(), which has {len(arguments)}, counted from 0: "
                f"{_named(arguments)}"
            )
        if place in taken:
            raise InvalidArgument(
                f"inputs '{taken[place]}' and '{name}' both refer to argument {place} of forward(): name them after "
                f"its arguments {_named(arguments)}, or give each a number of its own, as in INPUT__0"
            )
        taken[place] = name


def _named(arguments: Sequence[Argument]) -> str:
    return ", ".join(argument.name for argument in arguments) or "none"


def _check_controls(config: Mapping[str, Any]) -> None:
    for name, data_type in controls_of(config):
        if place_in(name) is None:
            raise Internal(f"input '{name}' does not follow <name>__<index> naming convention.")
        if data_type and data_type not in NUMBERS:
            raise Internal(f"input '{name}' type '{data_type}' is not supported by PyTorch.")


def _input_places(config: Mapping[str, Any], known: Sequence[str]) -> dict[str, int]:
    names = names_of(config, "input")
    convention = _convention_of(names, known)
    places = {name: place for name, _ in controls_of(config) if (place := place_in(name)) is not None}
    for order, name in enumerate([*names, *made_names(config)]):
        places[name] = _place(name, order, convention, known)
    for state in states_of(config):
        places[str(state["input_name"])] = _state_place(str(state["input_name"]), known, config)
    return places


def _convention_of(names: Sequence[str], known: Sequence[str]) -> _Convention:
    if known and all(name in known for name in names):
        return _Convention.ARGUMENTS
    return _Convention.ORDER if any(place_in(name) is None for name in names) else _Convention.PLACES


def _place(name: str, order: int, convention: _Convention, known: Sequence[str]) -> int:
    match convention:
        case _Convention.ARGUMENTS:
            return known.index(name) if name in known else order
        case _Convention.PLACES:
            return place_in(name) or 0
        case _:
            return order


def _state_place(name: str, known: Sequence[str], config: Mapping[str, Any]) -> int:
    if name in known:
        return known.index(name)
    place = place_in(name)
    if place is None:
        text = (
            f"PyTorch model '{config.get('name', '')}' is using sequence batching with state but state '{name}' does "
            "not follow the <name>__<index> naming convention. "
        )
        raise InvalidArgument(with_advice(text.strip(), "name it as in STATE__1, with the position of its tensor"))
    return place


def _output_places(config: Mapping[str, Any]) -> dict[str, int]:
    names = names_of(config, "output")
    convention = _convention_of(names, ())
    places = {name: _place(name, order, convention, ()) for order, name in enumerate(names)}
    for state in states_of(config):
        name = str(state["output_name"])
        places[name] = _state_place(name, (), config)
    return places
