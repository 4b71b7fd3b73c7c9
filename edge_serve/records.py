"""Records: slotted data classes whose methods are compiled when they are first used.

`dataclasses` writes and compiles a source for each class at each start. That was a third of the instructions of the
server's start, which creates objects of few classes (ADR 38).

A record has no `InitVar`, and no `__setattr__`, `__getstate__`, or `__setstate__` of its own. A frozen one has no base
that is not frozen, nor the other way round.
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

#: what `dataclass` is asked for, to have a method compiled and no other
_ARGUMENTS: dict[str, dict[str, bool]] = {
    "__init__": {"init": True, "repr": False, "eq": False},
    "__repr__": {"init": False, "repr": True, "eq": False},
    "__eq__": {"init": False, "repr": False, "eq": True},
    "__hash__": {"init": False, "repr": False, "eq": False, "unsafe_hash": True},
}
#: classes whose objects are made while requests are served, until `compile_records`
_waiting: set[type[Any]] = set()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Return a value: the class as `dataclass(frozen=True, slots=True)` does.

    The functions of `dataclasses` (`fields`, `replace`, `asdict`) work, and once a method was called it is the one that
    `dataclass` writes.
    """
    made = _record(cls, tuple(_ARGUMENTS), frozen=True)
    for name, method in _FIXED.items():
        setattr(made, name, method)
    return made


@dataclass_transform(field_specifiers=(field,))
def slotted(cls: type[T]) -> type[T]:
    """Return the class as `dataclass(slots=True)` does; `compile_records` compiles its `__init__`."""
    made = _record(cls, ("__init__", "__repr__", "__eq__"))
    if "__hash__" not in vars(made):
        made.__hash__ = None  # type: ignore[assignment]  # as for each class with `__eq__`
    _waiting.add(made)
    return made


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def entity(cls: type[T]) -> type[T]:
    """Return the class as `dataclass(slots=True, eq=False)` does: an object is equal to itself alone.

    `compile_records` compiles its `__init__`.
    """
    made = _record(cls, ("__init__", "__repr__"))
    _waiting.add(made)
    return made


def compile_records() -> None:
    """Compile each `__init__` of the classes that are not frozen, before the first request needs it."""
    waiting = list(_waiting)
    _waiting.difference_update(waiting)
    for cls in waiting:
        if hasattr(vars(cls).get("__init__"), "compiles"):
            _compile(cls, "__init__", frozen=False)


def _record(cls: type[T], names: tuple[str, ...], *, frozen: bool = False) -> type[T]:
    own = {name for name in names if vars(cls).get(name) is not None}  # Python sets __hash__ to None beside __eq__
    cls.__doc__ = cls.__doc__ or cls.__name__  # in place of the signature, which `inspect` would find out
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    for name in names:
        if name not in own:
            setattr(made, name, _compiling(made, name, frozen))
    return made


def _compiling(cls: type[Any], name: str, frozen: bool) -> Callable[..., Any]:
    """Return a method that compiles the one of its class, and then calls it."""

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        _compile(cls, name, frozen)
        return getattr(cls, name)(self, *args, **keywords)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    method.compiles = True  # type: ignore[attr-defined]
    return method


def _compile(cls: type[Any], name: str, frozen: bool) -> None:
    """Put the method of a data class with the same fields into its place."""
    space: dict[str, Any] = {
        "__annotations__": {one.name: one.type for one in fields(cls)},
        "__doc__": "its own",  # in place of the signature, which `inspect` would find out
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
    twin = type(cls.__name__, (), space)
    sets_fields = frozen and name == "__init__"  # past `_refuse_set`
    setattr(cls, name, vars(dataclass(frozen=sets_fields, **_ARGUMENTS[name])(twin))[name])


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
