"""The optimization profiles of an instance, and the choice of one for a batch.

Follows tensorrt_backend src/instance_state.cc: the profile whose best shape is nearest to the batch, by Manhattan
distance. A batch that no profile takes is refused before it runs, with the ranges of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_serve.backends.tensorrt.engine import EngineInfo, Profile, Range
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, with_advice
from edge_serve.messages.tensors import shape_text
from edge_serve.records import frozen

#: by the name of an input: the shape of the whole batch, or the values of a shape tensor
Shapes = Mapping[str, Sequence[int]]


@frozen
class Choice:
    """A profile that an instance may run with, which has an execution context of its own.

    Attributes:
        name: in `instance_group.profile`.
    """

    name: str
    index: int
    profile: Profile

    def __str__(self) -> str:
        """Return the profile as Triton writes it in its messages."""
        return f"{self.name}[{self.index}]"

    @property
    def ranges(self) -> str:
        """Return the ranges of all inputs, for a message."""
        parts = [f"{name} {span}" for name, span in self.profile.shapes.items() if name not in self.profile.values]
        return ", ".join([*parts, *(f"values of {name} {span}" for name, span in self.profile.values.items())])


def profile_index(name: str) -> int:
    """Return the index that a profile's name is.

    Raises:
        InvalidArgument: it is no number.
    """
    if not name:
        raise InvalidArgument("profile name must not be empty")
    try:
        return int(name)
    except ValueError as error:
        raise InvalidArgument(f"unable to parse '{name}': expected the index of a profile, such as \"0\"") from error


def group_profiles(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the profiles of all instance groups, in their order."""
    return [str(name) for group in config.get("instance_group") or () for name in group.get("profile") or ()]


def instance_profiles(names: Sequence[str], engine: EngineInfo, instance: str) -> tuple[Choice, ...]:
    """Return the profiles of an instance, by index; the first one where its group names none.

    Args:
        names: `profile` of its instance group.

    Raises:
        InvalidArgument: the engine has no such profile.
    """
    found: dict[int, str] = {}
    for name in names or ("default",):
        index = profile_index(name) if names else 0
        if not 0 <= index < len(engine.profiles):
            raise InvalidArgument(
                f"Can not set the specified optimization profile {name}[{index}] for {instance}. Expected optimization "
                f"profile index range 0-{len(engine.profiles) - 1}"
            )
        found.setdefault(index, name)
    return tuple(Choice(found[index], index, engine.profiles[index]) for index in sorted(found))


def choose(choices: Sequence[Choice], shapes: Shapes, values: Shapes, instance: str) -> Choice:
    """Return the profile that is nearest to a batch; of equally near ones, the first.

    Args:
        shapes: of the inputs that are no shape tensors, the batch included.
        values: of the shape tensors, the batch included where the model batches.
        instance: the name of the instance, for the message.

    Raises:
        InvalidArgument: no profile takes it.
        Internal: the only profile does not take a shape: Triton answers 500.
    """
    nearest, shortest = None, 0
    for choice in choices:
        if fault(choice.profile, shapes, values, instance) is None:
            far = distance(choice.profile, shapes, values)
            if nearest is None or far < shortest:
                nearest, shortest = choice, far
    if nearest is None:
        raise _none_fits(choices, shapes, values, instance)
    return nearest


def distance(profile: Profile, shapes: Shapes, values: Shapes) -> int:
    """Return the Manhattan distance of a batch from the best shapes and values of a profile.

    Triton compares each dimension but the batch with the one before it in the request. That is a slip, which makes it
    prefer a farther profile; here each is compared with itself.
    """
    return _distances(profile.shapes, shapes) + _distances(profile.values, values)


def _distances(ranges: Mapping[str, Range], found: Shapes) -> int:
    pairs = [(ranges[name].opt, sizes) for name, sizes in found.items() if name in ranges]
    return sum(abs(best - size) for bests, sizes in pairs for best, size in zip(bests, sizes, strict=False))


def fault(profile: Profile, shapes: Shapes, values: Shapes, instance: str) -> EdgeServeError | None:
    """Return the error for a batch that a profile does not take; None = it does. Inputs without a range pass."""
    for name, sizes in shapes.items():
        span = profile.shapes.get(name)
        text = _misfit(span, sizes) if span is not None and name not in profile.values else ""
        if text:
            return Internal(f"request specifies invalid shape for input '{name}' for {instance}. Error details: {text}")
    for name, span in profile.values.items():
        text = _missing(name, instance) if name not in values else _value_misfit(profile, name, span, values[name])
        if text:
            return InvalidArgument(text)
    return None


def _misfit(span: Range, sizes: Sequence[int]) -> str:
    """Return the difference between a shape and a range, "" = it fits; -1 fits any."""
    if len(sizes) != len(span.max):
        return f"model expected {len(span.max)} dimensions but received {len(sizes)} dimensions"
    for index, (low, size, high) in enumerate(zip(span.min, sizes, span.max, strict=True)):
        if size != -1 and not low <= size <= high:
            return f"model expected the shape of dimension {index} to be between {low} and {high} but received {size}"
    return ""


def _missing(name: str, instance: str) -> str:
    return f"unable to find shape values for shape input '{name}' in request for {instance}"


def _value_misfit(profile: Profile, name: str, span: Range, values: Sequence[int]) -> str:
    shape = profile.shapes.get(name)
    count = shape.max[0] if shape is not None and shape.max else 1
    if len(values) != count:
        return f"mismatch between the number of shape values. Expecting {count}. Got {len(values)}"
    # TensorRT 8.6 does not report the range of all values; it checks the others itself
    for index, (low, value, high) in enumerate(zip(span.min, values, span.max, strict=False)):
        if not low <= value <= high:
            return f"The shape value at index {index} is expected to be in range from {low} to {high}, Got: {value}"
    return ""


def _none_fits(choices: Sequence[Choice], shapes: Shapes, values: Shapes, instance: str) -> EdgeServeError:
    if len(choices) == 1:
        error = fault(choices[0].profile, shapes, values, instance)
        assert error is not None
        return type(error)(with_advice(error.message, f"profile {choices[0]} takes {choices[0].ranges}"))
    found = ", ".join(f"{name} {shape_text(sizes)}" for name, sizes in {**shapes, **values}.items())
    ranges = "; ".join(f"{choice} takes {choice.ranges}" for choice in choices)
    return InvalidArgument(
        f"failed to find any Optimization Profile among [{''.join(f' {choice}' for choice in choices)}] to support the "
        f"requested dimensions (or shape values): the batch for {instance} has {found}; {ranges}"
    )


def largest_shape(span: Range, dims: Sequence[int], max_batch_size: int, name: str, model: str) -> tuple[int, ...]:
    """Return the largest shape that a profile and the configuration allow for an input, which its memory must hold.

    Args:
        dims: the configuration's, with the batch dimension where the model batches (-1 = as large as the profile's).
        max_batch_size: 0 = the model does not batch.

    Raises:
        InvalidArgument: the configuration's shape lies outside of the profile.
    """
    wanted = (-1, *dims[1:]) if max_batch_size else tuple(dims)
    text = _misfit(span, wanted)
    if text:
        raise InvalidArgument(
            f"model configuration specified invalid shape for input '{name}' for model {model}. Error details: {text}; "
            f"the profile takes {span}"
        )
    largest = [high if size == -1 else size for size, high in zip(wanted, span.max, strict=True)]
    if max_batch_size and dims[0] != -1:
        largest[0] = min(largest[0], dims[0])
    return tuple(largest)
