"""The JSON part of an inference request in two: what tells requests apart, and what a client repeats in all of them.

Clients write `id` and `parameters` (a sequence's id and flags among them) before `inputs`, or `parameters` after all
else. Cut there, the pieces are JSON objects of their own, and together they say what the whole says: a cut that is not
between members of the outermost object leaves a piece that is no JSON. So who has read `inputs` and `outputs` once need
not read them again when another request has the same text there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

_INPUTS, _PARAMETERS = b'"inputs"', b'"parameters"'
_OWN = {"id", "parameters"}
_SPACE = b" \t\r\n"


class Split(NamedTuple):
    """A text that was cut.

    Attributes:
        own: the members of this request alone: `id` and `parameters`.
        common: the text of all others.
    """

    own: dict[str, Any]
    common: bytes

    def is_clean(self) -> bool:
        """Neither `id` nor `parameters` is in `common` once more. To be asked of a text that was read as a whole."""
        text = self.common.rstrip(_SPACE)
        members = _members(b"{" + (text[:-1] + b"}" if text[-1:] == b"," else text))
        return "inputs" in members and not _OWN & members.keys()


def split(text: bytes) -> Split | None:
    """Cut a JSON text; None when it is not written like that."""
    start = text.find(_INPUTS)
    front = text[: max(start, 0)].rstrip(_SPACE)
    own: dict[str, Any] = {}
    if front != b"{" and not (front[-1:] == b"," and (own := _members(front[:-1] + b"}"))):
        return None
    common = text[start:]
    last = common.rfind(_PARAMETERS)
    before = common[: max(last, 0)].rstrip(_SPACE)
    if before[-1:] == b"," and before[:-1].rstrip(_SPACE)[-1:] == b"]":  # behind `inputs` or `outputs`
        behind = _members(b"{" + common[last:])
        if behind:
            own, common = {**own, **behind}, before
    return Split(own, common) if own and own.keys() <= _OWN else None


def _members(text: bytes) -> dict[str, Any]:
    """Those of a JSON object; none when it is no object."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if type(found) is dict else {}
