"""Version floors: the lowest version of each role, serial, and release counter that this device still accepts.

TUF's own rollback protection is in its local files, and ends when `timestamp.json` is lost. So the highest seen
versions are stored in two more files, one of them on another partition. The higher value of the two counts: a backup of
one partition lowers nothing, and a lost file is written again.

A floor has the keys that could sign when it was recorded. It applies as long as these keys still suffice: metadata that
no longer verifies needs no floor. That is TUF's recovery from a fast-forward attack (5.3.11), for every role.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ota import files
from ota.errors import RolledBack, StoreError, Untrusted
from ota.strict_json import MOST_INTEGER, Members, parse, to_canonical_json

SCHEMA = 1
#: of a place. Floors are added up to half of it, and of `files.MOST_DOCUMENT`: a place may get those of both places.
#: Roles that the targets role does not delegate to get an eighth, so that the holder of one key leaves room for others
MOST_FLOORS = 10_000
#: of a floor
MOST_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest accepted value of metadata that `keys` signed. Without keys it always applies."""

    value: int
    keys: frozenset[str] = frozenset()

    def applies(self, keys: Collection[str], threshold: int) -> bool:
        """Return whether metadata from the time of this floor still verifies with `keys`."""
        return not self.keys or len(self.keys.intersection(keys)) >= threshold


class Floors:
    """The floors of a device, merged from all places. `save` writes each place that differs.

    Args:
        places: the files; `Layout.floors` and `Settings.floor_copy`.

    Attributes:
        found: whether a place had readable floors.
        issued: when the newest timestamp was signed, by its own statement; good_time: the last time that the clock was
            believed (epoch).
        issued_keys: the keys that could sign that timestamp; none = unknown, `issued` always counts.
        lost: when this device noticed that it had metadata, and no floors (epoch); 0 = never.
        warnings: sentences about places that could not be read or written.

    Raises:
        StoreError: a newer edge-ota wrote a place.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple(places)
        self._floors: dict[str, list[Floor]] = {}
        self.issued = self.good_time = self.lost = 0.0
        self.issued_keys: frozenset[str] = frozenset()
        self.found = False
        self.warnings: list[str] = []
        self._stored: dict[Path, bytes | None] = {}
        for place in self._places:
            self._read(place)

    def floor(self, name: str, keys: Collection[str] = (), threshold: int = 1) -> int:
        """Return the lowest accepted value; 0 = any.

        Args:
            name: such as `role/timestamp`, `serial/plant-a`, `counter/det`.
            keys: key IDs of the role that signs the value; none = every floor of that name applies.
        """
        known = self._floors.get(name, [])
        return max((one.value for one in known if not keys or one.applies(keys, threshold)), default=0)

    def check(self, name: str, value: int, keys: Collection[str], threshold: int) -> None:
        """Refuse a value below its floor, and one that could not be read again.

        Raises:
            RolledBack: it is below.
            Untrusted: it is higher than any counter gets, its name is not printable, or it has too many keys.
        """
        if not name.isprintable():
            raise Untrusted(f"{name} has characters that no name has: revoke the key of the role that delegates to it")
        if len(keys) > MOST_KEYS:
            raise Untrusted(f"{name} has {len(keys)} keys, expected at most {MOST_KEYS}: delegate it again")
        if value > MOST_INTEGER:
            raise Untrusted(f"{name} is {value}, expected at most {MOST_INTEGER}: the publisher must rotate its key")
        if value < (lowest := self.floor(name, keys, threshold)):
            raise RolledBack(
                f"the repository serves an old state: {name} is {value}, and this device has seen {lowest}; "
                "use another mirror, or publish again"
            )

    def raise_to(self, name: str, value: int, keys: Collection[str], threshold: int, *, is_deep: bool = False) -> None:
        """Raise a floor, unless a higher one applies. `save` makes it durable.

        Args:
            is_deep: it is of a role that only a role below targets delegates to.

        Raises:
            Untrusted: there is no room for another floor, or for the keys of this one.
        """
        if value < self.floor(name, keys, threshold):
            return
        known, fresh = self._floors.get(name), Floor(value, frozenset(keys))
        floors = self._floors | {name: [fresh]}
        part = 8 if is_deep else 2
        if (known is None and len(floors) > MOST_FLOORS // part) or (
            (known is None or known[0].keys != fresh.keys)
            and len(self._encoded(floors)) > max(files.MOST_DOCUMENT // part, len(self._encoded(self._floors)))
        ):
            raise Untrusted(
                f"{name} gets no version floor, because this device has {len(self._floors)} already: revoke the key of "
                "the role that delegates to so many others"
            )
        self._floors = floors

    def discard_others(self, version: int, roots: Collection[str]) -> None:
        """Discard all floors if they are of another publisher.

        Only another factory root can cause this, which root alone may place: each chain contains the factory root, and
        so does the floor that was recorded from it. A floor of an edge-ota that stored no roots stays.

        Args:
            version: of the newest verified root. A higher one than the floor may be of the same publisher.
            roots: digests of the roots in its chain.
        """
        known = self._floors.get("role/root", [])
        if known and not any(version > one.value or one.applies(roots, 1) for one in known):
            self._floors, self.issued, self.issued_keys = {}, 0.0, frozenset()

    def discard_issued(self, keys: Collection[str], threshold: int) -> bool:
        """Discard the time of the newest timestamp if its keys no longer suffice. Return whether they did not.

        With a stolen key it may lie ahead by the life of the other roles, and timestamps of the new keys would be
        expired until then.
        """
        if not self.issued or Floor(0, self.issued_keys).applies(keys, threshold):
            return False
        self.issued, self.issued_keys = 0.0, frozenset()
        return True

    def raise_issued(self, issued: float, keys: Collection[str], threshold: int) -> None:
        """Raise the time of the newest timestamp, which `keys` signed."""
        self.discard_issued(keys, threshold)
        if issued >= self.issued:
            self.issued, self.issued_keys = issued, frozenset(keys)

    def values(self) -> dict[str, int]:
        """Return each floor by name, for status."""
        return {name: self.floor(name) for name in sorted(self._floors)}

    def save(self) -> None:
        """Write each place that differs.

        Raises:
            StoreError: no place could be written.
        """
        data = self._encoded(self._floors)
        failed: list[StoreError] = []
        for place in self._places:
            if self._stored[place] == data:
                continue
            try:
                files.make_directory(place.parent)
                files.write_durably(place, data)
            except StoreError as error:
                failed.append(error)
                self._warn(f"version floors not written: {error.message}")
            else:
                self._stored[place] = data
        if failed and len(failed) == len(self._places):
            raise failed[0]

    def _encoded(self, floors: dict[str, list[Floor]]) -> bytes:
        body = {
            "schema": SCHEMA,
            "issued": self.issued,
            "issued_keys": sorted(self.issued_keys),
            "good_time": self.good_time,
            "lost": self.lost,
            "floors": {
                name: [{"value": one.value, "keys": sorted(one.keys)} for one in known]
                for name, known in floors.items()
            },
        }
        return to_canonical_json({"floors": body, "sha256": checksum(body)})

    def _read(self, place: Path) -> None:
        self._stored[place] = None
        try:
            data = files.read(place)
            if data is None:
                return
            self._merge(data, str(place))
        except (StoreError, Untrusted) as error:
            if isinstance(error, _NewerSchema):
                raise
            self._warn(f"version floors ignored: {error.message}")
        else:
            self._stored[place] = data
            self.found = True

    def _merge(self, data: bytes, place: str) -> None:
        outer = parse(data, place, files.MOST_DOCUMENT)
        body = outer.get("floors")
        if not isinstance(body, dict) or outer.get("sha256") != checksum(body):
            raise Untrusted(f"{place} is damaged: its checksum does not match")
        members = Members(body, place)
        if (schema := members.integer("schema")) != SCHEMA:
            raise _NewerSchema(
                f"{place} has schema {schema}, and this edge-ota reads {SCHEMA}: install the newer edge-ota again"
            )
        issued, good, lost = (members.number(name) for name in ("issued", "good_time", "lost"))
        keys = members.array("issued_keys", [], most=MOST_KEYS)
        found = {
            name: list(_floors_of(items, place)) for name, items in members.table("floors", most=MOST_FLOORS).items()
        }
        if issued > self.issued:
            self.issued, self.issued_keys = issued, frozenset(str(key) for key in keys)
        self.good_time, self.lost = max(self.good_time, good), max(self.lost, lost)
        for name, floors in found.items():
            for one in floors:
                self._merge_floor(name, one)

    def _merge_floor(self, name: str, found: Floor) -> None:
        known = self._floors.setdefault(name, [])
        if not any(one.keys == found.keys and one.value >= found.value for one in known):
            known[:] = [one for one in known if one.keys != found.keys] + [found]

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


class _NewerSchema(StoreError):
    """Floors of a newer edge-ota, which must not be ignored."""


def _floors_of(found: object, place: str) -> Iterator[Floor]:
    for item in found if isinstance(found, list) else []:
        members = Members(item, place)
        yield Floor(members.integer("value"), frozenset(str(key) for key in members.array("keys", most=MOST_KEYS)))


def checksum(body: dict[str, Any]) -> str:
    """Return the checksum of floors, which detects a damaged file."""
    return hashlib.sha256(to_canonical_json(body)).hexdigest()
