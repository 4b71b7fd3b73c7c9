"""The status file of the device image: its name, versions, and faults, read for the status document.

The image and the server share no code. The file is JSON, schema 1. Unknown members are ignored, and a file that is not
such JSON is itself shown as the problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from edge_serve.files import read_small
from edge_serve.messages.status import SystemEntry, SystemFacts, SystemFault

SCHEMA = 1
_MOST_TEXT = 1000
_MOST_ROWS = 64


def read_system(path: str) -> SystemFacts | None:
    """Return the content of the file; None = there is none, so this is not the device image.

    Blocks: not in the event loop.
    """
    if not path:
        return None
    try:
        found = json.loads(read_small(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return SystemFacts(problem=f"{path} cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return SystemFacts(problem=f"{path} is not a status file of the device image with schema {SCHEMA}")
    return SystemFacts(
        name=_text(found, "name"),
        addresses=tuple(one for one in _list(found, "addresses") if isinstance(one, str)),
        fingerprint=_text(found, "fingerprint"),
        version=_text(found, "version"),
        slot=_text(found, "slot"),
        provisioned=found.get("provisioned") is True,
        entries=tuple(SystemEntry(_text(row, "version"), _text(row, "state")) for row in _rows(found, "entries")),
        faults=tuple(
            SystemFault(_text(row, "code"), _text(row, "text"), _text(row, "since"), _text(row, "help"))
            for row in _rows(found, "faults")
        ),
    )


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    return value[:_MOST_ROWS] if isinstance(value, list) else []


def _rows(found: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    return (one for one in _list(found, name) if isinstance(one, dict))
