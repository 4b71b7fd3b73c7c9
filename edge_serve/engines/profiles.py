"""The optimization profiles of a build, from shapes that are given or from a configuration. No TensorRT here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from edge_serve.engines.options import Shapes
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import same_shape, shape_text
from edge_serve.records import frozen

#: smallest, best, and largest shape of an input; of a shape tensor its values
Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
#: by side, the sides that replace it if it is not given, in this order
_STAND_INS = {"min": ("opt", "max"), "opt": ("max", "min"), "max": ("opt", "min")}


@frozen
class NetworkInput:
    """An input of a network: -1 = the dimension is open. The values of a shape tensor are shapes of other tensors."""

    name: str
    shape: tuple[int, ...]
    is_shape: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether a profile must have a range for it."""
        return self.is_shape or -1 in self.shape


@frozen
class BatchHints:
    """The shapes and batch sizes of a configuration.

    Attributes:
        max_batch: `max_batch_size`; 0 = the model does not batch, or the configuration leaves it open.
        preferred: `preferred_batch_size` of dynamic batching.
        dims: input -> `dims`, or the shape of `reshape`, without the batch.
    """

    max_batch: int = 0
    preferred: tuple[int, ...] = ()
    dims: Shapes = field(default_factory=dict)


def plan_profiles(
    inputs: Sequence[NetworkInput], shapes: Sequence[Mapping[str, Shapes]], hints: BatchHints
) -> list[dict[str, Range]]:
    """Return the profiles: input -> range, open inputs only. A network without open dimensions needs none.

    Args:
        shapes: for each profile `min`, `opt`, and `max`, as far as they are given.

    Raises:
        InvalidArgument: the shapes or the configuration contradict the network, or leave a dimension open.
    """
    _check_names(inputs, shapes)
    opened = [one for one in inputs if one.is_open]
    for one in inputs:
        if not one.is_shape and one.name in hints.dims:
            _full_dims(one, hints)
    if not opened:
        for profile in shapes:
            for one in inputs:
                if any(one.name in given for given in profile.values()):
                    _given(one, profile)
        return []
    if shapes:
        return [{one.name: _given(one, profile) for one in opened} for profile in shapes]
    return [{one.name: _configured(one, hints) for one in opened}]


def _check_names(inputs: Sequence[NetworkInput], shapes: Sequence[Mapping[str, Shapes]]) -> None:
    names = [one.name for one in inputs]
    for profile in shapes:
        for side, given in profile.items():
            if unknown := [name for name in given if name not in names]:
                raise InvalidArgument(
                    f"--{side}-shapes has a shape for '{unknown[0]}', and the model's inputs are {', '.join(names)}"
                )


def _given(one: NetworkInput, profile: Mapping[str, Shapes]) -> Range:
    sides = []
    for side, others in _STAND_INS.items():
        source = next((name for name in (side, *others) if one.name in profile.get(name, {})), "")
        if not source:
            raise InvalidArgument(f"input '{one.name}' has no shape: {_needed(one)}")
        shape = profile[source][one.name]
        _check_shape(one, shape, f"--{source}-shapes")
        sides.append(shape)
    least, best, most = sides
    if not all(low <= middle <= high for low, middle, high in zip(least, best, most, strict=True)):
        raise InvalidArgument(
            f"the shapes of input '{one.name}' are {shape_text(least)}, {shape_text(best)}, and {shape_text(most)}, "
            "expected none below the one before it, in any dimension (--min-shapes, --opt-shapes, --max-shapes)"
        )
    return least, best, most


def _check_shape(one: NetworkInput, shape: Sequence[int], flag: str) -> None:
    text = f"{flag} gives input '{one.name}' {shape_text(shape)}, and the model has {shape_text(one.shape)}"
    if one.is_shape:
        count = one.shape[0] if one.shape else 1
        if len(shape) != count:
            raise InvalidArgument(f"{text}: it is a shape tensor, expected its {count} values")
        return
    if len(shape) != len(one.shape):
        raise InvalidArgument(f"{text}: expected {len(one.shape)} dimensions, the batch among them")
    for wanted, found in zip(one.shape, shape, strict=True):
        if wanted not in (-1, found):
            raise InvalidArgument(f"{text}: expected {wanted} in place of {found}, or export the model with an open "
                                  "dimension there")  # fmt: skip


def _full_dims(one: NetworkInput, hints: BatchHints) -> tuple[int, ...]:
    """Return the shape of an input, completed from the configuration; -1 = the configuration leaves it open, too.

    Raises:
        InvalidArgument: the two contradict each other.
    """
    batch = (-1,) if hints.max_batch else ()
    dims = (*batch, *hints.dims.get(one.name, one.shape[len(batch) :]))
    text = f"input '{one.name}' has the shape {shape_text(one.shape)}"
    if hints.max_batch and one.shape and one.shape[0] not in (-1, hints.max_batch):
        raise InvalidArgument(
            f"{text}, whose batch is always {one.shape[0]}, and config.pbtxt says max_batch_size: {hints.max_batch}; "
            "export the model with an open first dimension, or remove max_batch_size and write the batch into dims"
        )
    if not same_shape(one.shape, dims):
        raise InvalidArgument(
            f"{text}, and config.pbtxt makes it {shape_text(dims)} (max_batch_size, dims): correct it"
        )
    return tuple(found if wanted == -1 else wanted for wanted, found in zip(one.shape, dims, strict=True))


def _configured(one: NetworkInput, hints: BatchHints) -> Range:
    if one.is_shape:
        raise InvalidArgument(f"input '{one.name}' is a shape tensor: give its values; {_needed(one)}")
    dims = _full_dims(one, hints)
    start = 1 if hints.max_batch else 0
    if -1 in dims[start:]:
        raise InvalidArgument(
            f"input '{one.name}' has the shape {shape_text(one.shape)}, and nothing says how large it gets: "
            + _needed(one)
            + ("" if hints.max_batch or one.shape[0] != -1 else "; or write max_batch_size into config.pbtxt")
        )
    if not hints.max_batch or one.shape[0] != -1:
        return dims, dims, dims
    smaller = [size for size in hints.preferred if 0 < size <= hints.max_batch]
    best = max(smaller, default=hints.max_batch)
    return (1, *dims[1:]), (best, *dims[1:]), (hints.max_batch, *dims[1:])


def _needed(one: NetworkInput) -> str:
    """Return the options that give an input its range, as an example."""
    shape = (-1,) * (one.shape[0] if one.shape else 1) if one.is_shape else one.shape
    low = ["1" if dim == -1 else str(dim) for dim in shape]
    high = ["8" if shape[0] == -1 else low[0], *low[1:]]
    return "such as " + " ".join(
        f"--{side}-shapes={one.name}:{'x'.join(dims)}" for side, dims in (("min", low), ("opt", high), ("max", high))
    )
