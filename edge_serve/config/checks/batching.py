"""Checks of `dynamic_batching` and `sequence_batching`: sizes, priorities, controls, and states.

`dynamic_batching` may accompany `max_batch_size: 0`: then it only gives the model a queue with priorities and a queue
policy. Triton accepts a state without name, type or dims; such a state cannot work and is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument


def check_dynamic_batching(batching: pb.ModelDynamicBatching, name: str, max_batch_size: int) -> None:
    """Check that sizes, priorities and queue policies agree with each other.

    Raises:
        InvalidArgument: with Triton's text.
    """
    _check_preferred("dynamic batching preferred size", batching.preferred_batch_size, name, max_batch_size)
    if batching.priority_levels:
        _check_priorities(batching, name)
    if batching.preserve_ordering:
        _check_ordering(batching, name)


def _check_preferred(what: str, sizes: Iterable[int], name: str, max_batch_size: int) -> None:
    for size in sizes:
        if size <= 0:
            raise InvalidArgument(f"{what} must be positive for {name}")
        if size > max_batch_size:
            raise InvalidArgument(f"{what} must be <= max batch size for {name}")


def _check_priorities(batching: pb.ModelDynamicBatching, name: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise InvalidArgument(f"default priority level must be in range [1, {levels}] for {name}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            text = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            raise InvalidArgument(text)


def _check_ordering(batching: pb.ModelDynamicBatching, name: str) -> None:
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        raise InvalidArgument(text)
    policies: Iterable[pb.ModelQueuePolicy] = batching.priority_queue_policy.values()
    for policy in [batching.default_queue_policy, *policies]:
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            raise InvalidArgument(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            )


_CORRELATION_ID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")


def check_sequence_batching(batching: pb.ModelSequenceBatching, name: str, max_batch_size: int) -> None:
    """Check that controls are complete and unique, strategies in range, and states described.

    Raises:
        InvalidArgument: with Triton's text.
    """
    _check_control_names(batching, name)
    for kind in ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY"):
        for control in _controls(batching, kind, name):
            _check_boolean_control(control, kind, name)
    for control in _controls(batching, "CONTROL_SEQUENCE_CORRID", name):
        _check_correlation_id_control(control, name)
    sizes = batching.oldest.preferred_batch_size
    _check_preferred("sequence batching preferred batch size", sizes, name, max_batch_size)
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
        raise InvalidArgument(text)
    _check_states(batching, name)


def _check_control_names(batching: pb.ModelSequenceBatching, name: str) -> None:
    seen: set[str] = set()
    for control_input in batching.control_input:
        tensor = control_input.name
        if not tensor:
            raise InvalidArgument(f"sequence batching control tensor must have a name for {name}")
        if tensor in seen:
            text = f"sequence batching control tensor '{tensor}' is specified for multiple control kinds for {name}"
            raise InvalidArgument(text)
        seen.add(tensor)


def _controls(batching: pb.ModelSequenceBatching, kind: str, name: str) -> Iterator[pb.ModelSequenceBatching.Control]:
    """Yield the control of `kind`, if there is one."""
    number = pb.ModelSequenceBatching.Control.Kind.Value(kind)
    found = [c for tensor in batching.control_input for c in tensor.control if c.kind == number]
    yield from found[:1]
    if len(found) > 1:
        raise InvalidArgument(f"sequence batching specifies multiple {kind} tensors for {name}")


def _check_boolean_control(control: pb.ModelSequenceBatching.Control, kind: str, name: str) -> None:
    given = [field for field in _FALSE_TRUE if len(getattr(control, field))]
    where = f"for {kind} for {name}"
    if not given:
        raise InvalidArgument(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' " + where
        )
    if len(given) > 1:
        raise InvalidArgument(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' {where}"
        )
    if len(getattr(control, given[0])) != 2:
        raise InvalidArgument(f"sequence batching control '{given[0]}' must have exactly 2 entries {where}")


def _check_correlation_id_control(control: pb.ModelSequenceBatching.Control, name: str) -> None:
    where = f"CONTROL_SEQUENCE_CORRID for {name}"
    if any(len(getattr(control, field)) for field in _FALSE_TRUE):
        raise InvalidArgument(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {where}"
        )
    if control.data_type not in [pb.DataType.Value(allowed) for allowed in _CORRELATION_ID_TYPES]:
        raise InvalidArgument(
            f"unexpected data type for control {where}. Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, "
            "TYPE_INT32 and TYPE_STRING"
        )


def _check_states(batching: pb.ModelSequenceBatching, name: str) -> None:
    seen: set[str] = set()
    for state in batching.state:
        for field in ("input_name", "output_name", "data_type", "dims"):
            if not getattr(state, field):
                raise InvalidArgument(f"sequence batching state must specify '{field}' for {name}")
        if any(dim < 1 and dim != -1 for dim in state.dims):
            raise InvalidArgument(
                f"sequence batching state '{state.input_name}' dimension must be integer >= 1, or -1 to indicate a "
                f"variable-size dimension for {name}"
            )
        if state.input_name in seen:
            raise InvalidArgument(f"State input name '{state.input_name}' specified more than once.")
        seen.add(state.input_name)


def check_initial_states(batching: pb.ModelSequenceBatching) -> None:
    """Check that each state has at most one initial value, which fits it.

    Triton checks them later than the rest: when it creates the scheduler of a version (core
    src/sequence_batch_scheduler).

    Raises:
        InvalidArgument: with Triton's text.
    """
    for state in batching.state:
        if len(state.initial_state) > 1:
            raise InvalidArgument(
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        for initial in state.initial_state:
            _check_initial_state(initial, state)


def _check_initial_state(initial: pb.ModelSequenceBatching.InitialState, state: pb.ModelSequenceBatching.State) -> None:
    tensor = state.input_name
    if initial.data_type != state.data_type:
        raise InvalidArgument(
            f"The data type used for 'initial_state' field of state '{tensor}' does not match the state data type."
        )
    if not initial.name:
        raise InvalidArgument(f"Field 'name' must be set when using initial_state for state input '{tensor}'.")
    if len(initial.dims) != len(state.dims):
        raise InvalidArgument(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{tensor}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for have, want in zip(initial.dims, state.dims, strict=True):
        if have == -1:
            raise InvalidArgument(
                f"'initial_state' field for state input name '{tensor}' contains variable dimensions."
            )
        if want not in (-1, have):
            raise InvalidArgument(
                f"'initial_state' dim for input name '{tensor}' doesn't match 'state' dim description. {have} != {want}"
            )
    if initial.WhichOneof("state_data") is None:
        raise InvalidArgument(f"initial_state setting expects state'{tensor}' to have state_data set")
