"""The floors by themselves: two places, merged by the higher of each value. K3."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from ota import files
from ota.errors import RolledBack, StoreError, Untrusted
from ota.trust import floors as module
from ota.trust.floors import Floors, checksum

OLD, NEW, OTHER = {"k1"}, {"k2"}, {"k3"}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Two places, the second on what would be another partition."""
    return tmp_path / "floors.json", tmp_path / "other" / "floors.json"


def _set(places: tuple[Path, ...], name: str, value: int, keys: set[str], threshold: int = 1) -> Floors:
    floors = Floors(places)
    floors.check(name, value, keys, threshold)
    floors.raise_to(name, value, keys, threshold)
    floors.save()
    return floors


def test_a_floor_is_kept_in_both_places(places: tuple[Path, Path]) -> None:
    _set(places, "role/timestamp", 5, OLD)

    assert places[0].read_bytes() == places[1].read_bytes()
    assert Floors(places[:1]).values() == Floors(places[1:]).values() == {"role/timestamp": 5}


def test_a_value_below_the_floor_is_refused_and_changes_nothing(places: tuple[Path, Path]) -> None:
    floors = _set(places, "role/timestamp", 5, OLD)
    floors.raise_to("role/timestamp", 3, OLD, 1)

    with pytest.raises(RolledBack, match="role/timestamp is 4, and this device has seen 5"):
        floors.check("role/timestamp", 4, OLD, 1)
    floors.check("role/timestamp", 5, OLD, 1)
    assert floors.values() == {"role/timestamp": 5}


@pytest.mark.parametrize(
    ("then", "now", "threshold", "applies"),
    [
        ({"a"}, {"a"}, 1, True),
        ({"a"}, {"a", "b"}, 1, True),
        ({"a", "b"}, {"b", "c"}, 1, True),
        ({"a"}, {"b"}, 1, False),
        ({"a", "b", "c"}, {"a", "b", "d"}, 2, True),
        ({"a", "b", "c"}, {"a", "d", "e"}, 2, False),
        ({"a", "b", "c"}, {"a", "b", "c"}, 3, True),
        (set(), {"x"}, 1, True),
    ],
)
def test_a_floor_applies_while_its_keys_suffice(
    places: tuple[Path, Path], then: set[str], now: set[str], threshold: int, applies: bool
) -> None:
    """A floor guards against metadata that was signed then; where that no longer verifies, there is no floor."""
    floors = _set(places, "role/x", 7, then, threshold)

    assert floors.floor("role/x", now, threshold) == (7 if applies else 0)


@pytest.mark.fault("K3")
@pytest.mark.parametrize(
    ("stored", "version", "roots", "stay"),
    [
        ({"factory", "second"}, 1, {"factory"}, True),
        ({"factory", "second"}, 1, {"another"}, False),
        ({"factory", "second"}, 2, {"another"}, False),
        ({"factory", "second"}, 3, {"newer"}, True),
        (set(), 1, {"another"}, True),
    ],
)
def test_floors_of_another_publisher_are_discarded(
    places: tuple[Path, Path], stored: set[str], version: int, roots: set[str], stay: bool
) -> None:
    floors = Floors(places)
    floors.raise_to("role/root", 2, stored, 1)
    floors.raise_to("serial/plant", 7, {"a"}, 1)
    floors.raise_issued(100.0, {"t"}, 1)
    floors.good_time = 50.0

    floors.discard_others(version, roots)

    assert floors.values() == ({"role/root": 2, "serial/plant": 7} if stay else {})
    assert (floors.issued, floors.good_time) == (100.0 if stay else 0.0, 50.0)


def test_the_higher_of_each_value_counts(places: tuple[Path, Path]) -> None:
    """Two places that were restored from backups of different days."""
    _set(places[:1], "role/a", 5, OLD)
    _set(places[:1], "role/b", 2, OLD)
    _set(places[1:], "role/a", 4, OLD)
    _set(places[1:], "role/b", 9, OLD)
    for place, issued in zip(places, (100.0, 200.0), strict=True):
        floors = Floors([place])
        floors.raise_issued(issued, OLD, 1)
        floors.good_time = 300.0 - issued
        floors.save()
    floors = Floors(places)
    floors.save()

    assert floors.values() == {"role/a": 5, "role/b": 9}
    assert (floors.issued, set(floors.issued_keys), floors.good_time) == (200.0, OLD, 200.0)
    assert places[0].read_bytes() == places[1].read_bytes()


@pytest.mark.fault("T4")
def test_the_time_of_a_timestamp_counts_while_its_keys_suffice(places: tuple[Path, Path]) -> None:
    floors = Floors(places)
    floors.raise_issued(900.0, OLD, 1)
    floors.save()
    floors = Floors(places)
    assert (floors.discard_issued({"k1", "k2"}, 1), floors.issued) == (False, 900.0)
    floors.raise_issued(500.0, {"k1", "k2"}, 1)
    assert (floors.issued, set(floors.issued_keys)) == (900.0, OLD)
    floors.raise_issued(500.0, NEW, 1)
    assert (floors.issued, set(floors.issued_keys)) == (500.0, NEW)
    floors.issued_keys = frozenset()  # of an edge-ota that did not store them
    assert (floors.discard_issued(OTHER, 1), floors.issued) == (False, 500.0)


@pytest.mark.fault("T4", "K3")
def test_a_backup_from_before_a_rotation_brings_no_floor_back(places: tuple[Path, Path]) -> None:
    """The backup has a version that a thief set far ahead, with keys that count no more."""
    _set(places, "role/timestamp", 10**9, OLD)
    backup = places[1].read_bytes()
    _set(places, "role/timestamp", 3, NEW)
    places[1].write_bytes(backup)

    floors = Floors(places)
    assert floors.floor("role/timestamp", NEW, 1) == 3
    floors.raise_to("role/timestamp", 4, NEW, 1)
    floors.save()
    assert Floors(places).values() == {"role/timestamp": 4}


def test_nothing_is_written_when_nothing_changed(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _set(places, "role/a", 5, OLD)
    done: list[files.DiskOperation] = []
    monkeypatch.setattr(files, "point", done.append)
    _set(places, "role/a", 5, OLD)

    assert done == []


def test_the_write_is_synced(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _set(places, "role/a", 5, OLD)
    done: list[str] = []
    monkeypatch.setattr(files, "point", lambda one: done.append(one.kind))
    _set(places, "role/a", 6, OLD)

    assert done == ["create", "write", "fsync", "rename", "fsync"] * 2


@pytest.mark.fault("K3", "D4")
def test_one_place_that_cannot_be_written_is_a_warning_and_two_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_bytes(b"")
    blocked = tmp_path / "blocked" / "floors.json"
    good = tmp_path / "floors.json"

    floors = _set((good, blocked), "role/a", 5, OLD)
    assert "version floors" in floors.warnings[0]
    assert Floors([good]).values() == {"role/a": 5}
    with pytest.raises(StoreError, match="blocked"):
        _set((blocked,), "role/a", 5, OLD)


@pytest.mark.fault("K3", "C6")
@pytest.mark.parametrize("cut", range(0, 190, 13))
def test_a_place_that_is_torn_anywhere_is_ignored_with_a_warning(places: tuple[Path, Path], cut: int) -> None:
    _set(places, "role/timestamp", 5, OLD)
    places[0].write_bytes(places[0].read_bytes()[:cut])
    floors = Floors(places)

    assert floors.values() == {"role/timestamp": 5}
    assert floors.warnings[0].startswith("version floors ignored: ")


@pytest.mark.fault("K3")
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"value":5', b'"value":4'),
        lambda data: data.replace(b"floors", b"fluors"),
        lambda data: b"[]",
        lambda data: b"\xff" * 40,
    ],
)
def test_a_place_whose_checksum_does_not_match_is_ignored(places: tuple[Path, Path], change: object) -> None:
    _set(places, "role/timestamp", 5, OLD)
    assert callable(change)
    places[0].write_bytes(change(places[0].read_bytes()))

    assert Floors(places).values() == {"role/timestamp": 5}
    assert Floors(places[:1]).values() == {}


def test_floors_of_a_newer_agent_are_not_ignored(places: tuple[Path, Path]) -> None:
    """An older agent that passed over them would lower what the device accepts."""
    floors = _set(places, "role/timestamp", 5, OLD)
    body = json.loads(places[0].read_bytes())["floors"] | {"schema": 2}
    places[0].write_bytes(json.dumps({"floors": body, "sha256": checksum(body)}).encode())
    assert floors.values()
    with pytest.raises(StoreError, match="has schema 2, and this edge-ota reads 1: install the newer edge-ota again"):
        Floors(places)


def test_a_value_that_no_counter_reaches_is_refused(places: tuple[Path, Path]) -> None:
    with pytest.raises(Untrusted, match="expected at most 9007199254740992"):
        Floors(places).check("role/a", 2**53 + 1, OLD, 1)


@pytest.mark.fault("T12", "K3")
@pytest.mark.parametrize(
    ("name", "keys", "error"),
    [
        ("role/x\u0001", OLD, "role/x. has characters that no name has"),
        ("role/x", {f"k{number}" for number in range(1025)}, "role/x has 1025 keys, expected at most 1024"),
    ],
)
def test_a_floor_that_could_not_be_read_again_is_refused(
    places: tuple[Path, Path], name: str, keys: set[str], error: str
) -> None:
    with pytest.raises(Untrusted, match=error):
        Floors(places).check(name, 1, keys, 1)


@pytest.mark.fault("T12", "K3")
@pytest.mark.parametrize("limit", ["number", "bytes"])
def test_floors_are_never_more_than_can_be_read_again(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Each place may have as many, and then one has those of both."""
    if limit == "number":
        monkeypatch.setattr(module, "MOST_FLOORS", 20)
    else:
        monkeypatch.setattr(files, "MOST_DOCUMENT", 1400)
    for number, place in enumerate(places):
        floors = _set((place,), "role/honest", 1, OLD)
        for other in range(100):
            with contextlib.suppress(Untrusted):
                floors.raise_to(f"role/{number}-{other:02}", 1, OLD, 1)
        with pytest.raises(Untrusted, match="role/late gets no version floor, because this device has"):
            floors.raise_to("role/late", 1, OLD, 1)
        floors.raise_to("role/honest", 12, OLD, 1)
        floors.save()
    _set(places, "role/honest", 345, OLD)

    floors = Floors(places)
    assert (floors.warnings, floors.floor("role/honest")) == ([], 345)
    assert 10 < len(floors.values()) < 30
