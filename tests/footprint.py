"""Counts the objects that a value keeps alive: a memo or a table is bounded where this number is."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType

#: lead to all code of the program
_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)


def footprint(root: object) -> int:
    """Return how many objects are reachable from `root`, without code and what only code leads to."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, _CODE):
            seen[id(one)] = one
            waiting.extend(gc.get_referents(one))
    return len(seen)
