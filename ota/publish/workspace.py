"""The publisher's own directory: where keys are, how long roles last, the change that waits, and the static files.

publish.json   names and places of keys, life times of roles     keys/         private keys, for their owner only
pending.json   a change that waits for signatures (ceremony.py)  repository/   what a web server serves
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ota import files
from ota.errors import AlreadyRunning, Untrusted, UsageError
from ota.publish.keys import (
    KeyPlace,
    KeyProblem,
    Secrets,
    generate,
    limit_answers,
    public_from,
    read_private,
    signer_of,
    write_private,
)
from ota.publish.roles import TEAM, kind_of
from ota.strict_json import parse, to_canonical_json

SCHEMA = 1
MOST_BYTES = 4 * 1024 * 1024
#: seconds to wait for another command: longer than the questions at its terminal (keys.ANSWER_SECONDS)
PATIENCE = 600.0
_AGAIN = 0.1


@dataclass(slots=True)
class Workspace:
    """The publisher's directory in memory.

    Attributes:
        keys: ID -> key and its place. Public keys that are not here are in the metadata.
        days: kind of role -> life time of its signatures.
    """

    path: Path
    secrets: Secrets
    keys: dict[str, KeyPlace] = field(default_factory=dict)
    days: dict[str, float] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        """The static files."""
        return self.path / "repository"

    @property
    def key_files(self) -> Path:
        """The private keys."""
        return self.path / "keys"

    @property
    def pending(self) -> Path:
        """The change that waits for signatures of other machines."""
        return self.path / "pending.json"

    @property
    def expired(self) -> Path:
        """The last change that expired while it waited, after another one took its place."""
        return self.path / "pending.expired.json"

    def days_of(self, role: str) -> float:
        """Return the days that a role's signatures last."""
        kind = kind_of(role)
        return self.days.get(kind, TEAM[kind].days)

    def key_name(self, keyid: str) -> str:
        """Return a key's name, or the start of its ID."""
        return self.keys[keyid].name if keyid in self.keys else keyid[:16]

    def add(self, place: KeyPlace) -> KeyPlace:
        """Add a key.

        Raises:
            UsageError: another key has this name.
        """
        for keyid, known in self.keys.items():
            if known.name == place.name and keyid != place.public.keyid:
                raise UsageError(f"there is another key named {place.name}: give this one another name")
        known = self.keys.get(place.public.keyid, place)
        self.keys[place.public.keyid] = place if place.uri else known
        return self.keys[place.public.keyid]

    def new_file_key(self, name: str, kind: str) -> KeyPlace:
        """Create a key file in keys/."""
        signer = generate(kind)
        path = self.key_files / f"{name}.pem"
        write_private(path, signer, self.secrets.fresh(name))
        return self.add(KeyPlace(name, signer.public_key, f"file:{path.name}"))

    def adopt(self) -> None:
        """Add the files in keys/ that publish.json does not name."""
        known = {one.uri for one in self.keys.values()}
        for path in sorted(self.key_files.glob("*.pem")):
            if f"file:{path.name}" not in known:
                public = read_private(path, path.stem, self.secrets).public_key
                self.add(KeyPlace(path.stem, public, f"file:{path.name}"))
        self.save()

    def next_name(self, role: str) -> str:
        """Return a name for a new key of a role: `timestamp-2`."""
        taken = {one.name for one in self.keys.values()} | {one.stem for one in self.key_files.glob("*.pem")}
        return next(name for number in range(1, 10_000) if (name := f"{role}-{number}") not in taken)

    def signer(self, keyid: str) -> Any:
        """Return the signer of a key.

        Raises:
            KeyProblem: it is not here, or cannot be opened.
        """
        if keyid not in self.keys:
            raise KeyProblem(f"the key {keyid[:16]} is not on this machine")
        return signer_of(self.keys[keyid], self.key_files, self.secrets)

    def save(self) -> None:
        """Write publish.json."""
        value = {
            "schema": SCHEMA,
            "keys": [self.keys[keyid].to_dict() for keyid in sorted(self.keys)],
            "days": self.days,
        }
        files.write_durably(self.path / "publish.json", to_canonical_json(value), 0o600)


def create(path: Path, secrets: Secrets, days: Mapping[str, float]) -> Workspace:
    """Create the directory of a workspace, and return the workspace. No file is written yet.

    Raises:
        UsageError: the directory is one already, or has other files.
    """
    if (path / "publish.json").exists():
        raise UsageError(f"{path} is a publisher's directory already: name another one")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not empty: name a new directory")
    with files.make_readable():  # a web server serves repository/ inside; keys and state are for their owner only
        files.make_directory(path)
    return Workspace(path, secrets, {}, dict(days))


def read(path: Path, secrets: Secrets) -> Workspace:
    """Return the workspace of a directory.

    Raises:
        UsageError: it is none. Untrusted: publish.json is damaged.
    """
    data = files.read(path / "publish.json", MOST_BYTES)
    if data is None:
        raise UsageError(f"{path} is not a publisher's directory: make one with 'edge-ota publish init {path}'")
    what = f"{path}/publish.json"
    found = parse(data, what, MOST_BYTES)
    if found.get("schema") != SCHEMA:
        raise UsageError(f"{what} has schema {found.get('schema')!r}, and this edge-ota reads {SCHEMA}")
    try:
        places = [
            KeyPlace(one["name"], public_from(one["public"], what), one["uri"], one["module"]) for one in found["keys"]
        ]
        days = {str(kind): float(days) for kind, days in found["days"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Untrusted(f"{what} is damaged ({type(error).__name__} {error}): restore it from a backup") from None
    return Workspace(path, secrets, {place.public.keyid: place for place in places}, days)


@contextlib.contextmanager
def acquire_lock(path: Path) -> Iterator[None]:
    """Lock a workspace against other publishers, and limit the time of questions. Wait for another one, and print which
    it is.

    Raises:
        AlreadyRunning: it has not ended within PATIENCE seconds. UsageError: there is no such directory.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a publisher's directory: make one with 'edge-ota publish init {path}'")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _acquire(path, descriptor)
        with limit_answers():
            yield
    finally:
        os.close(descriptor)


def _acquire(path: Path, descriptor: int) -> None:
    until = time.monotonic() + PATIENCE
    is_waiting = False
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _find_owner(os.fstat(descriptor).st_ino)
        if time.monotonic() >= until:
            raise AlreadyRunning(f"{owner} works in {path}: wait until it ends, or stop it, and repeat this command")
        if not is_waiting:
            print(f"waiting for {owner}, which works in {path}", file=sys.stderr, flush=True)
        is_waiting = True
        time.sleep(_AGAIN)


def _find_owner(inode: int) -> str:
    """Return the command that has the lock of a directory, as far as the kernel tells."""
    with contextlib.suppress(OSError, IndexError):
        for fields in map(str.split, Path("/proc/locks").read_text().splitlines()):
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                command = Path(f"/proc/{fields[4]}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                return f"'{command.decode(errors='replace')[-200:]}' (process {fields[4]})"
    return "another edge-ota publish"
