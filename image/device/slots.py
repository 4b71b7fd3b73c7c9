"""Boot entries on the ESP, and the record of good and bad versions of the system.

The name of an entry is the truth about its slot: `edge_7+3.efi` has three tries left, `edge_7+0-3.efi` has none and is
bad, `edge_7.efi` is not counted. systemd-boot lowers the number at each boot. The record adds the reasons. Its copy on
the ESP keeps them when the data partition is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from image.device import files

SCHEMA = 1
#: tries of a version that was found good: more than a new one has, because power cuts while it starts count too
TRIES = 5
#: bad versions that the record keeps, the highest ones
MOST_BAD = 32
MOST_BYTES = 64 * 1024
#: of a baseline, which has the names of all models: a status document with all of their facts is no longer (server.py)
MOST_BASELINE = 16 * 1024 * 1024
MOST_REASON = 400

_ENTRY = re.compile(r"edge_([0-9]{1,10})(?:\+([0-9]{1,3})(?:-([0-9]{1,3}))?)?\.efi")
_IMAGE_VERSION = re.compile(r'^IMAGE_VERSION="?([0-9]{1,10})"?$', re.MULTILINE)


class BootEntry(NamedTuple):
    """A boot entry.

    Attributes:
        left: tries left; None = the boots of this entry are not counted.
    """

    name: str
    version: int
    left: int | None = None

    @property
    def usable(self) -> bool:
        """Whether systemd-boot takes this entry while there is another one."""
        return self.left != 0


def read_entry(name: str) -> BootEntry | None:
    """Return the entry that a file name stands for; None for other files."""
    if not (found := _ENTRY.fullmatch(name)):
        return None
    return BootEntry(name, int(found[1]), None if found[2] is None else int(found[2]))


class Slots(NamedTuple):
    """The record of versions: `slots.json`.

    Attributes:
        confirmed: versions that were found good on this device, oldest first.
        bad: version -> why it must not be installed again.
        pending: the version that is being installed, waits for its restart, or is tried. Each boot removes one
            that is none of these.
        previous: the version that ran before this one.
        data_lasted: whether /var was on the data partition when `pending` was installed; missing in older records.
    """

    confirmed: tuple[int, ...] = ()
    bad: Mapping[int, str] = MappingProxyType({})
    pending: int | None = None
    previous: int | None = None
    data_lasted: bool = True

    def with_bad(self, version: int, reason: str) -> Slots:
        """Return the record with one more bad version."""
        kept = sorted({**self.bad, version: reason[:MOST_REASON]}.items())[-MOST_BAD:]
        return self._replace(
            bad=dict(kept),
            confirmed=tuple(one for one in self.confirmed if one != version),
            pending=None if self.pending == version else self.pending,
        )

    def text(self) -> str:
        """Return the record as JSON."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "confirmed": list(self.confirmed),
                "bad": {str(version): reason for version, reason in sorted(self.bad.items())},
                "pending": self.pending,
                "previous": self.previous,
                "data_lasted": self.data_lasted,
            }
        )


def read_slots(data: bytes | None) -> Slots | None:
    """Return the record in a file; None if it is missing, damaged, or of another schema."""
    try:
        found = json.loads(data or b"")
        if found["schema"] != SCHEMA:
            return None
        return Slots(
            tuple(_number(one) for one in found["confirmed"]),
            {int(version): str(reason) for version, reason in found["bad"].items()},
            None if found["pending"] is None else _number(found["pending"]),
            None if found["previous"] is None else _number(found["previous"]),
            found.get("data_lasted", True) is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no version")
    return value


class Failure(NamedTuple):
    """The reason why a version is not used any more. It is written before the restart.

    Attributes:
        kind: health, operator, root (verity refused it in the initrd), disk (read errors), or "" (it never reported).
    """

    version: int
    kind: str
    reason: str


def _update(path: Path, data: bytes) -> None:
    if files.read_if_there(path, MOST_BYTES) != data:
        files.make_directory(path.parent)
        files.replace(path, data)


class SlotStore:
    """The ESP and the record of a device.

    Args:
        root: `/`; tests have a directory.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.esp = root / "boot"
        self.entries_directory = self.esp / "EFI/Linux"
        self.state = root / "var/lib/edge-system"
        self.record = self.state / "slots.json"
        self.record_copy = self.esp / "edge-slots.json"
        self.failure = self.esp / "edge-failed.json"
        self.failure_copy = self.state / "failed.json"
        self.baseline = self.state / "baseline.json"
        # in memory: always writable, and over with this boot
        self.run = root / "run/edge-device"
        self._leaving = self.run / "leaving"

    def running(self) -> int:
        """Return the version of the system that runs.

        Raises:
            ValueError: os-release names none.
        """
        for path in (self.root / "etc/os-release", self.root / "usr/lib/os-release"):
            if found := _IMAGE_VERSION.search((files.read_if_there(path, MOST_BYTES) or b"").decode(errors="replace")):
                return int(found[1])
        raise ValueError("/etc/os-release has no IMAGE_VERSION: this is not the device image")

    @contextlib.contextmanager
    def lock(self, wait: bool = True) -> Iterator[None]:
        """Lock entries and record against the other programs that change them.

        Raises:
            BlockingIOError: another program has the lock, and `wait` is false.
        """
        self.run.mkdir(parents=True, exist_ok=True)
        with open(self.run / "slots.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield

    def is_leaving(self) -> bool:
        """Return whether the running system was condemned in this boot, and the restart follows."""
        return self._leaving.exists()

    def entries(self) -> tuple[BootEntry, ...]:
        """Return the boot entries, lowest version first. An ESP that cannot be read has none.

        An empty file is no entry. After a power cut in a rename two names have the same clusters, and fsck.fat leaves
        0 bytes to the one that is later in the directory.
        """
        try:
            with os.scandir(self.entries_directory) as found:
                names = sorted(one.name for one in found if one.stat().st_size)
        except OSError:
            return ()
        return tuple(sorted((one for name in names if (one := read_entry(name))), key=lambda one: one.version))

    def load(self) -> Slots:
        """Return the record. What only the copy on the ESP calls bad, good, or pending counts too.

        /var may have been full or in memory, or the record may be older than the last installation. So a pending
        version counts only if it has an entry; of two, the higher one was installed later. The copy may lack the
        verdict on that version: `decide.without_stale_pending` then removes it at the next boot.
        """
        copy = read_slots(files.read_if_there(self.record_copy, MOST_BYTES))
        found = read_slots(files.read_if_there(self.record, MOST_BYTES))
        if found is None:
            return copy or Slots()
        if copy is not None:
            for version, reason in copy.bad.items():
                if version not in found.bad and version not in found.confirmed:
                    found = found.with_bad(version, reason)
            good = [one for one in copy.confirmed if one not in found.bad and one not in found.confirmed]
            found = found._replace(confirmed=(*found.confirmed, *good))
            here = {one.version for one in self.entries()}
            last = max(found, copy, key=lambda one: one.pending if one.pending in here else 0)
            found = found._replace(pending=last.pending, data_lasted=last.data_lasted)
        return found

    def save(self, slots: Slots) -> None:
        """Write the record and its copy, unless they are as they should be.

        Raises:
            OSError: one of them cannot be written.
        """
        self.save_record(slots)
        self.save_copy(slots)

    def save_record(self, slots: Slots) -> None:
        """Write the record on the data partition, unless it is as it should be."""
        _update(self.record, slots.text().encode())

    def save_copy(self, slots: Slots) -> None:
        """Write the copy on the ESP, unless it is as it should be."""
        _update(self.record_copy, slots.text().encode())

    def write_baseline(self, baseline: Mapping[str, Any]) -> None:
        """Write the state of the server before an update (`decide.baseline_of`).

        Raises:
            OSError: it cannot be written.
        """
        files.replace(self.baseline, json.dumps(baseline).encode())

    def read_baseline(self, version: int) -> dict[str, Any] | None:
        """Return the state of the server before the update to a version; None if there is none."""
        try:
            found = json.loads(files.read_if_there(self.baseline, MOST_BASELINE) or b"")
            usable = found["version"] == version and isinstance(found["live"], bool)
            return {**found, "models": [str(one) for one in found["models"]]} if usable else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def remove_baseline(self, version: int) -> None:
        """Remove the baseline of a version. That of another one stays, which may wait for its restart.

        Raises:
            OSError: it cannot be removed.
        """
        if self.read_baseline(version) is not None:
            files.remove(self.baseline)

    def read_failure(self) -> Failure | None:
        """Return the reason that the last condemned version left."""
        return self._failure_in(self.failure) or self._failure_in(self.failure_copy)

    def _failure_in(self, path: Path) -> Failure | None:
        try:
            found = json.loads(files.read_if_there(path, MOST_BYTES) or b"")
            return Failure(_number(found["version"]), str(found["kind"]), str(found["reason"])[:MOST_REASON])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def write_failure(self, failure: Failure) -> None:
        """Write the reason why a version is not used, where there is room: on the ESP and on the data partition.

        Nothing is raised, because the verdict has to take effect without its reason, too.
        """
        for path in (self.failure, self.failure_copy):
            try:
                _update(path, json.dumps(failure._asdict()).encode())
            except OSError as error:
                # not to standard output, which is the agent's connection in edge-system@.service
                text = f"<4>{path.parent}: the reason cannot be stored: {error.strerror or error}"
                print(text, file=sys.stderr, flush=True)
                with contextlib.suppress(OSError):
                    files.remove(path)  # that of an earlier version would be read in its place

    def condemn(self, failure: Failure) -> None:
        """Take all tries from an entry, so that systemd-boot starts the other one. The reason is written first.

        Raises:
            OSError: the entry cannot be renamed, and would be started again.
        """
        self.write_failure(failure)
        self.set_tries(failure.version, 0)
        self.run.mkdir(parents=True, exist_ok=True)
        self._leaving.touch()

    def set_tries(self, version: int, left: int) -> None:
        """Rename the entry of a version. A second entry of it, which a power cut in a rename can leave, is removed."""
        name = f"edge_{version}+{left}.efi"
        names = [one.name for one in self.entries() if one.version == version]
        if name not in names:
            if not names:
                return
            files.rename(self.entries_directory / names.pop(0), self.entries_directory / name)
        for other in names:
            if other != name:
                files.remove(self.entries_directory / other)
        files.sync_directory(self.entries_directory)

    def remove_entries(self, entries: Iterable[BootEntry]) -> None:
        """Remove entries durably."""
        for entry in entries:
            files.remove(self.entries_directory / entry.name)
