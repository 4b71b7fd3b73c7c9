"""The tensors of an engine as the configuration names them: where inputs come from, and where outputs go.

Inputs come from `input`, the controls and states of sequences, and `batch_input`; outputs are in `output` and states.
Follows tensorrt_backend src/instance_state.cc (InitIOBindingBuffers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from edge_serve.config.model.complete import config_dims
from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen

Json = Mapping[str, Any]

_SCATTER = "BATCH_SCATTER_WITH_INPUT_SHAPE"
#: the order in which Triton looks at controls
_CONTROLS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID")
_CONTROL_TYPES = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


class BindingRole(Enum):
    """The source of an input's values, or the destination of an output's."""

    REQUEST = "request"
    CONTROL = "control"
    BATCH = "batch"
    STATE = "state"


@frozen
class Binding:
    """A tensor as the configuration names it.

    Attributes:
        dims: without the batch dimension.
        ragged: an input whose requests are joined without a batch dimension, or an output that is scattered to them.
    """

    name: str
    is_input: bool
    role: BindingRole
    data_type: str
    dims: tuple[int, ...]
    ragged: bool = False

    @property
    def side(self) -> str:
        """Return `input` or `output`."""
        return "input" if self.is_input else "output"

    def full_dims(self, max_batch_size: int) -> tuple[int, ...]:
        """Return the dims with the batch dimension; -1 = as large as the engine's."""
        if self.ragged:
            return (-1,)
        if not max_batch_size:
            return self.dims
        return (-1 if self.role is BindingRole.BATCH else max_batch_size, *self.dims)


def input_bindings(config: Json) -> list[Binding]:
    """Return the inputs that the configuration names: those of requests, controls, batch inputs, and states.

    Raises:
        InvalidArgument: a batch input has a kind that is not supported.
    """
    found = [
        Binding(
            entry["name"], True, BindingRole.REQUEST, entry["data_type"], config_dims(entry),
            bool(entry.get("allow_ragged_batch")),
        )
        for entry in config.get("input") or ()
    ]  # fmt: skip
    found += _controls(config)
    for batch in config.get("batch_input") or ():
        dims = _batch_dims(batch, config)
        found += [
            Binding(name, True, BindingRole.BATCH, batch["data_type"], dims) for name in batch.get("target_name") or ()
        ]
    for state in _states(config):
        found.append(Binding(state["input_name"], True, BindingRole.STATE, state["data_type"], _numbers(state["dims"])))
    return found


def output_bindings(config: Json) -> list[Binding]:
    """Return the outputs that the configuration names: those of requests, then states.

    Raises:
        InvalidArgument: a batch output has a kind that is not supported.
    """
    scattered = set()
    for batch in config.get("batch_output") or ():
        for name in batch.get("target_name") or ():
            if batch.get("kind", _SCATTER) != _SCATTER:
                raise InvalidArgument(f"batch output kind other than {_SCATTER} is not supported for {name}")
            scattered.add(name)
    found = [
        Binding(
            entry["name"],
            False,
            BindingRole.REQUEST,
            entry["data_type"],
            config_dims(entry),
            entry["name"] in scattered,
        )
        for entry in config.get("output") or ()
    ]
    for state in _states(config):
        found.append(
            Binding(state["output_name"], False, BindingRole.STATE, state["data_type"], _numbers(state["dims"]))
        )
    return found


def _states(config: Json) -> Sequence[Json]:
    return (config.get("sequence_batching") or {}).get("state") or ()


def _controls(config: Json) -> Iterator[Binding]:
    entries = (config.get("sequence_batching") or {}).get("control_input") or ()
    for kind in _CONTROLS:
        for entry in entries:
            for control in entry.get("control") or ():
                if control.get("kind", _CONTROLS[0]) == kind:
                    yield Binding(entry["name"], True, BindingRole.CONTROL, _control_type(control), (1,))


def _control_type(control: Json) -> str:
    found = next((name for key, name in _CONTROL_TYPES.items() if control.get(key)), None)
    return found or str(control.get("data_type", ""))


def _batch_dims(batch: Json, config: Json) -> tuple[int, ...]:
    """Return the dims of a batch input. Where the model batches, the batch dimension is most often all of them."""
    kind = str(batch.get("kind", "BATCH_ELEMENT_COUNT"))
    sources = batch.get("source_input") or ("",)
    rank = next((len(config_dims(one)) for one in config.get("input") or () if one.get("name") == sources[0]), 0)
    ranks = (rank,) if rank else ()
    if kind not in _BATCH_DIMS:
        raise InvalidArgument(f"batch input type '{kind}' is not supported")
    if config.get("max_batch_size", 0) > 0:
        return ranks if kind == "BATCH_ITEM_SHAPE" else ()
    return (*_BATCH_DIMS[kind], *ranks) if kind.startswith("BATCH_ITEM_SHAPE") else _BATCH_DIMS[kind]


#: kind of a batch input -> its dims in a model that does not batch; those of shapes go on with the source's rank
_BATCH_DIMS: Mapping[str, tuple[int, ...]] = {
    "BATCH_ELEMENT_COUNT": (1,),
    "BATCH_ACCUMULATED_ELEMENT_COUNT": (1,),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": (2,),
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": (-1,),
    "BATCH_ITEM_SHAPE": (1,),
    "BATCH_ITEM_SHAPE_FLATTEN": (),
}


def _numbers(dims: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(dim) for dim in dims)
