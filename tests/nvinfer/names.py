"""The names of a module `tensorrt`, with the parameters of each function.

The parameters of a compiled function are in the signatures at the start of its docstring, one for each overload.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import tensorrt as trt

from tests.stand_ins.plans import plan, tensor

#: bases that the stand-in alone has
OWN = {"Enum"}
_SIGNATURE = re.compile(r"^(?:\d+\. )?\w+\((.*)\) -> ", re.MULTILINE)
#: a parameter at the top level, after the start or a comma: its name, before a colon
_PARAMETER = re.compile(r"(?:^|, )(\w+): ")


def parameters(function: Any) -> list[list[str]]:
    """Return the names of the parameters of each overload, without `self`."""
    if inspect.isfunction(function):
        found = [list(inspect.signature(function).parameters)]
    else:
        found = [_PARAMETER.findall(_outside(text)) for text in _SIGNATURE.findall(function.__doc__ or "")]
    return [names[1:] if names[:1] in (["self"], ["arg0"]) else names for names in found]


def _outside(text: str) -> str:
    """Return a signature without the brackets in its types."""
    while "[" in text:
        text = re.sub(r"\[[^\[\]]*\]", "", text)
    return text


def members(kind: type) -> dict[str, Any]:
    """Return the public members of a class: parameters of functions, numbers of an enum, None for others."""
    values = getattr(kind, "__members__", None)
    if values is not None:
        return {name: int(value) for name, value in values.items()}
    names = [name for name in dir(kind) if not name.startswith("_")]
    return {
        name: describe(getattr(kind, name)) for name in names if not hasattr(tuple, name) and not hasattr(bytes, name)
    }


def describe(value: Any) -> Any:
    """Return the parameters of a function, the members of a class, or None."""
    if isinstance(value, type):
        return members(value)
    return parameters(value) if callable(value) else None


def attributes() -> dict[str, list[str]]:
    """Return the public attributes of objects, by their class."""
    ranges = ((1, 4), (4, 4), (8, 4))
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    version = ".".join(trt.__version__.split(".")[:3])
    runtime = trt.Runtime(trt.Logger())
    engine = runtime.deserialize_cuda_engine(plan("identity", both, [{"INPUT0": ranges}], version=version))
    objects = (runtime, engine, engine.create_execution_context(), engine.create_engine_inspector(), trt.Logger())
    return {type(one).__name__: [name for name in dir(one) if not name.startswith("_")] for one in objects}


def collect() -> dict[str, Any]:
    """Return the names that the module itself has, and those of objects."""
    own = {name: one for name, one in vars(trt).items() if getattr(one, "__module__", "").startswith("tensorrt")}
    names = {name: describe(one) for name, one in own.items() if not name.startswith("_") and name not in OWN}
    return {"module": names, "objects": attributes()}
