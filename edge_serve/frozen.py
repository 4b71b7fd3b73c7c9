"""Values: frozen, slotted data classes whose methods are compiled when they are first used.

`dataclasses` writes and compiles a source for each class at each start. That was a third of the instructions of the
server's start, and a start creates objects of one class in seven (ADR 38).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # typing has it from Python 3.11 on

    def dataclass_transform(**_: object) -> Callable[[T], T]:
        """Return a decorator that changes nothing: only checkers of types read it."""
        return lambda function: function


T = TypeVar("T")

_COMPILED = ("__init__", "__repr__", "__eq__", "__hash__")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Return the class as `dataclass(frozen=True, slots=True)` does.

    The functions of `dataclasses` (`fields`, `replace`, `asdict`) work, and once a method was called it is the one that
    `dataclass` writes.
    """
    own = {name for name in _COMPILED if vars(cls).get(name) is not None}  # Python sets __hash__ to None beside __eq__
    cls.__doc__ = cls.__doc__ or cls.__name__  # in place of the signature, which `inspect` would find out
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    missing = [name for name in _COMPILED if name not in own]
    for name in missing:
        setattr(made, name, _compiling(made, name, missing))
    for name, method in _FIXED.items():
        setattr(made, name, method)
    return made


def _compiling(cls: type[Any], name: str, missing: list[str]) -> Callable[..., Any]:
    """Return a method that compiles those of its class, and then calls its successor."""

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        compiled = _twin(cls)
        for one in missing:
            setattr(cls, one, vars(compiled)[one])
        return getattr(cls, name)(self, *args, **keywords)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return method


def _twin(cls: type[Any]) -> type[Any]:
    """Return a data class with the same fields, whose methods are compiled."""
    space: dict[str, Any] = {
        "__annotations__": {one.name: one.type for one in fields(cls)},
        "__doc__": "",
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    for one in fields(cls):
        space[one.name] = field(
            default=one.default, default_factory=one.default_factory, init=one.init, repr=one.repr, hash=one.hash,
            compare=one.compare, kw_only=one.kw_only,
        )  # fmt: skip
    if hasattr(cls, "__post_init__"):
        space["__post_init__"] = None  # it is called on the object
    return dataclass(frozen=True)(type(cls.__name__, (), space))


def _refuse_set(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


#: the last two for pickle and copy, which would set attributes
_FIXED = {
    "__setattr__": _refuse_set, "__delattr__": _refuse_delete, "__getstate__": _state, "__setstate__": _restore
}  # fmt: skip
