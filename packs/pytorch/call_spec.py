"""Names of the inputs and outputs of a model.pt2, from the tree that torch keeps of its arguments. Pure, without torch.

An input is `ARGS[0]`, `ARGS[2][key]`, or `KWARGS[key]`, an output `RESULT`, `RESULT[0]`, or `RESULT[key]`, as deep as
the tree goes; or each has the number of its tensor, `INPUT__0` and `OUTPUT__0`. Rules and texts:
triton-inference-server/pytorch_backend README.md and src/pt2/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edge_serve.errors import Internal

from .signature import (
    NUMBERS,
    TensorPlaces,
    check_all_required,
    check_types,
    controls_of,
    input_names,
    names_of,
    states_of,
)

_SEQUENCES = frozenset({"builtins.tuple", "builtins.list"})


def input_leaves(specification: str) -> list[str]:
    """Return the names of the tensors of the arguments, in order.

    Raises:
        Internal: the tree has another container than tuples, lists, and dictionaries.
    """
    arguments, keywords = _root(specification)["children_spec"]
    return [*_leaves("ARGS", arguments), *_leaves("KWARGS", keywords)]


def output_leaves(specification: str) -> list[str]:
    """Return the names of the tensors of the result, in order. Raises as `input_leaves`."""
    return list(_leaves("RESULT", _root(specification)))


def signature_of(config: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]) -> TensorPlaces:
    """Return the places of a configuration's tensors in a model with these leaves.

    Raises:
        Internal: they contradict each other.
    """
    model, names = str(config.get("name", "")), input_names(config)
    if len(names) != len(inputs):
        raise Internal(
            f'Failed to load model "{model}" configuration expects {len(names)} inputs, but model expects '
            f"{len(inputs)} inputs. The model's inputs are {', '.join(inputs)}"
        )
    check_all_required(config)
    check_types(config, strings=False)
    for name, data_type in controls_of(config):
        if data_type and data_type not in NUMBERS:
            raise Internal(f"input '{name}' type '{data_type}' is not supported by PyTorch.")
    shown = [*names_of(config, "output"), *(str(state["output_name"]) for state in states_of(config))]
    places = {
        "input": _places(names, inputs, "input", model),
        "output": _places(dict.fromkeys(shown), outputs, "output", model),
    }
    return TensorPlaces(places["input"], places["output"], len(inputs))


def ordinals(side: str, count: int) -> list[str]:
    """Return the names by number: `INPUT__0`, `INPUT__1`."""
    return [f"{side.upper()}__{index}" for index in range(count)]


def _root(specification: str) -> dict[str, Any]:
    try:
        version, root = json.loads(specification)
    except (ValueError, TypeError) as error:
        raise Internal(f"the call specification of the model cannot be read: {error}") from error
    if version != 1 or not isinstance(root, dict):
        raise Internal(f"the call specification of the model has version {version}, expected 1: export it again")
    return root


def _leaves(name: str, node: Mapping[str, Any]) -> Iterator[str]:
    kind, children = node.get("type"), node.get("children_spec", ())
    if kind is None:
        yield name
    elif kind == "builtins.dict":
        keys = json.loads(node["context"]) if isinstance(node["context"], str) else node["context"]
        for key, child in zip(keys, children, strict=True):
            yield from _leaves(f"{name}[{key}]", child)
    elif kind in _SEQUENCES:
        for index, child in enumerate(children):
            yield from _leaves(f"{name}[{index}]", child)
    else:
        raise Internal(
            f"{name} of the model is of type {kind}, expected a tensor, or a tuple, list, or dictionary of them: "
            "export the model with these"
        )


def _places(
    names: Iterator[str] | Sequence[str] | Mapping[str, None], leaves: Sequence[str], side: str, model: str
) -> dict[str, int]:
    known = {name: index for found in (leaves, ordinals(side, len(leaves))) for index, name in enumerate(found)}
    places: dict[str, int] = {}
    for name in names:
        if name not in known:
            raise Internal(
                f'{side.capitalize()} "{name}" for model instance "{model}" is not found in model {side} map. The '
                f"{side}s are {', '.join(leaves)}, or {', '.join(ordinals(side, len(leaves)))}"
            )
        if known[name] in places.values() and side == "input":
            raise Internal(f'two inputs of model "{model}" name the same tensor {leaves[known[name]]}')
        places[name] = known[name]
    return places
