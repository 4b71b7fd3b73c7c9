"""Splits the JSON part of an inference request into the members that differ between requests, and those that repeat.

Clients write `id` and `parameters` (with a sequence's id and flags) before `inputs`, or `parameters` after all else.
Cut there, both pieces are JSON objects which together mean the same as the whole. A cut that is not between members of
the outermost object leaves a piece that is not JSON. So the decoder reads `inputs` and `outputs` once, and not again
for another request with the same text there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

_INPUTS, _PARAMETERS = b'"inputs"', b'"parameters"'
_OWN = {"id", "parameters"}
_SPACE = b" \t\r\n"


class Split(NamedTuple):
    """The two parts of a JSON text.

    Attributes:
        own: the members that belong to this request alone: `id` and `parameters`.
        common: the text of all other members.
    """

    own: dict[str, Any]
    common: bytes

    def is_clean(self) -> bool:
        """Return whether `common` has neither `id` nor `parameters` again. The text must have been read as a whole."""
        text = self.common.rstrip(_SPACE)
        members = _parse_members(b"{" + (text[:-1] + b"}" if text[-1:] == b"," else text))
        return "inputs" in members and not _OWN & members.keys()


def split(text: bytes) -> Split | None:
    """Split a JSON text; None if its members have another order."""
    start = text.find(_INPUTS)
    front = text[: max(start, 0)].rstrip(_SPACE)
    own: dict[str, Any] = {}
    if front != b"{" and not (front[-1:] == b"," and (own := _parse_members(front[:-1] + b"}"))):
        return None
    common = text[start:]
    last = common.rfind(_PARAMETERS)
    before = common[: max(last, 0)].rstrip(_SPACE)
    if before[-1:] == b"," and before[:-1].rstrip(_SPACE)[-1:] == b"]":  # after `inputs` or `outputs`
        behind = _parse_members(b"{" + common[last:])
        if behind:
            own, common = {**own, **behind}, before
    return Split(own, common) if own and own.keys() <= _OWN else None


def _parse_members(text: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; none if the text is not one."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if type(found) is dict else {}
