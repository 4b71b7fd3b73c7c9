"""JSON as protobuf's C++ reader takes it: bare keys, single quotes and commas before a closing bracket are let through.

Triton reads configurations that clients send with that reader (core src/model_config_utils.cc, JsonToModelConfig), and
clients have grown to count on it.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Strings and words are matched as a whole or not at all: the time is linear in the length of any text. A string that
#: does not end is one piece.
_PIECE = re.compile(
    r"""
      "(?:[^"\\]|\\.)*(?:"|\\?\Z)                    # a string stays as it is
    | '((?:[^'\\]|\\.)*)(?:'|\\?\Z)                  # 1: a string in single quotes
    | (?<![\w$])([A-Za-z_$][\w$]*)(?![\w$])(?=\s*:)   # 2: a bare key
    | ,(?=\s*[\]}])                                   # a comma too many
    """,
    re.VERBOSE | re.DOTALL,
)


def loads(text: str) -> Any:
    """The value that `text` holds; NaN and Infinity too.

    Raises:
        ValueError, RecursionError: not JSON, even so.
    """
    return json.loads(_PIECE.sub(_strict, text))


def _strict(piece: re.Match[str]) -> str:
    quoted, key = piece.group(1, 2)
    if key is not None:
        return f'"{key}"'
    if quoted is not None:
        return '"' + quoted.replace("\\'", "'").replace('"', '\\"') + '"'
    return "" if piece.group() == "," else piece.group()
