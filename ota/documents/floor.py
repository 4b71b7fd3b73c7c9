"""The lowest release counters that a family allows: a TUF target, listed by `models-<family>`. OTA.md 4.2."""

from __future__ import annotations

from collections.abc import Mapping

from ota.documents.names import name
from ota.strict_json import Members, parse

SCHEMA = 1
MOST_BYTES = 256 * 1024


def read_floor(data: bytes, family: str) -> Mapping[str, int]:
    """Return bundle -> the lowest release counter.

    Raises:
        Untrusted: it is malformed. Unsuitable: its schema is newer than this agent.
    """
    what = f"the floor of {family}"
    members = Members(parse(data, what, MOST_BYTES), what)
    members.check_schema(SCHEMA)
    floors = Members(members.table("floors", most=4096), f"{what}: floors")
    members.end()
    return {name(bundle, what): floors.integer(bundle) for bundle in floors.names()}
