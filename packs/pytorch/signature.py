"""The tensors that a configuration names, their types, and their places in the model. Pure, without torch.

Texts: triton-inference-server/pytorch_backend src/pt/model_instance_state.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_serve.errors import Internal, InvalidArgument

#: types of config.pbtxt that torch computes with. It has UINT16 and wider for few operators, and Triton refuses them.
NUMBERS = frozenset(
    f"TYPE_{name}" for name in ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64")
)
STRING = "TYPE_STRING"
NONE_LISTED = "model configuration must contain at least one {side}, none were specified."


@dataclass(frozen=True, slots=True)
class TensorPlaces:
    """The places of a configuration's tensors in the model.

    Attributes:
        inputs: name -> position among the arguments.
        outputs: name -> position among the results; states among them.
        count: of the arguments.
        keyed: the model has one argument, a dictionary with these inputs.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    count: int
    keyed: bool = False


def names_of(config: Mapping[str, Any], side: str) -> list[str]:
    """Return the names of `input` or `output`, in order.

    Raises:
        Internal: there are none.
    """
    names = [str(entry["name"]) for entry in config.get(side, ())]
    if not names:
        raise Internal(NONE_LISTED.format(side=side))
    return names


def states_of(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the entries of `sequence_batching.state`."""
    found: Sequence[Mapping[str, Any]] = (config.get("sequence_batching") or {}).get("state", ())
    return found


def controls_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each control input and its type, which is "" where it follows from its values."""
    for entry in (config.get("sequence_batching") or {}).get("control_input", ()):
        for control in entry.get("control", ()):
            typed = control.get("kind") == "CONTROL_SEQUENCE_CORRID"
            yield str(entry.get("name", "")), str(control.get("data_type", "")) if typed else ""


def made_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of inputs that are made from the shapes of others (`batch_input`)."""
    return [str(name) for entry in config.get("batch_input", ()) for name in entry.get("target_name", ())]


def input_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of everything that the model gets: inputs, batch inputs, controls, and states."""
    names = [*(str(entry["name"]) for entry in config.get("input", ())), *made_names(config)]
    names += dict.fromkeys(name for name, _ in controls_of(config))
    return [*names, *(str(state["input_name"]) for state in states_of(config))]


def check_all_required(config: Mapping[str, Any]) -> None:
    """Check that no input is optional: the model has a place for each.

    Raises:
        InvalidArgument: one is.
    """
    for entry in config.get("input", ()):
        if entry.get("optional"):
            raise InvalidArgument(
                f"input '{entry['name']}' is optional in config.pbtxt, and the model always needs it: remove optional"
            )


def check_some_required(config: Mapping[str, Any]) -> None:
    """Check that a model with batching, which gets its inputs by name, has one that tells the rows of a request.

    Raises:
        InvalidArgument: all are optional.
    """
    entries = config.get("input", ())
    if int(config.get("max_batch_size", 0)) and entries and all(entry.get("optional") for entry in entries):
        raise InvalidArgument("all inputs are optional in config.pbtxt: with max_batch_size, one must tell the rows")


def check_types(config: Mapping[str, Any], strings: bool) -> None:
    """Check the types of a configuration's tensors.

    Args:
        strings: the model may have lists of strings.

    Raises:
        Internal: with Triton's text.
    """
    name = config.get("name", "")
    for side in ("input", "output"):
        for entry in config.get(side, ()):
            _check_type(str(entry["data_type"]), f"{side} '{entry['name']}'", name, strings)
            if entry["data_type"] == STRING:
                _check_string_dims(entry, side, config)
    for state in states_of(config):
        _check_type(str(state["data_type"]), f"input state '{state['input_name']}'", name, strings)


def _check_type(data_type: str, what: str, model: str, strings: bool) -> None:
    if data_type in NUMBERS or (strings and data_type == STRING):
        return
    text = f"unsupported datatype {data_type} for {what} for model '{model}'"
    if data_type == STRING:
        raise Internal(f"{text}; a model.pt2 has tensors only: turn text into numbers before it, as in an ensemble")
    raise Internal(f"{text}; torch computes with {', '.join(sorted(NUMBERS))}")


def _check_string_dims(entry: Mapping[str, Any], side: str, config: Mapping[str, Any]) -> None:
    reshape = entry.get("reshape")
    dims = entry.get("dims", ()) if reshape is None else reshape.get("shape", ())
    if len(dims) + (int(config.get("max_batch_size", 0)) > 0) > 1:
        raise Internal(
            f"Triton only supports 1 dimensional List of String as {side} for '{entry['name']}' for model "
            f"'{config.get('name', '')}'; with max_batch_size above 0 write dims: [ 1 ] and reshape {{ shape: [ ] }}"
        )
