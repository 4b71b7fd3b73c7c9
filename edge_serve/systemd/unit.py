"""edge-serve.service as systemd knows it: its user, its environment and where it may write (`systemctl show`)."""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from edge_serve.files import read_small
from edge_serve.records import frozen, slotted
from edge_serve.systemd.environment_file import parse_environment_file

NAME = "edge-serve.service"
#: systemd listens with it for HTTP, and starts the service for the first connection
HTTP_SOCKET = "edge-serve.socket"
UNIT_FILE = "/usr/lib/systemd/system/edge-serve.service"
#: (pattern, whether a file that is missing is no error), as the unit has them
_FILES = (
    ("/usr/lib/edge-serve/edge-serve.conf", True),
    ("/etc/edge-serve/edge-serve.conf", True),
    ("/etc/edge-serve/conf.d/*.conf", True),
)
_PROPERTIES = (
    "LoadState", "User", "Environment", "EnvironmentFiles", "StateDirectory", "CacheDirectory",
    "RuntimeDirectory", "LogsDirectory", "ReadWritePaths", "ProtectSystem", "ProtectHome",
)  # fmt: skip
_SECONDS = 10.0
_PARENTS = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache", "RuntimeDirectory": "/run",
            "LogsDirectory": "/var/log"}  # fmt: skip


@frozen
class Unit:
    """The parts of the unit that determine the settings.

    Attributes:
        environment: Environment=, which the files override.
        files: EnvironmentFile=: patterns, and whether a missing file is no error.
        credentials: LoadCredential=: source files by the path that the service sees.
        made: directories that systemd makes for the service before it starts.
        writable: directories below which the service may write; None = where its user may.
        hidden: directories that the service cannot see.
    """

    user: str = "edge-serve"
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, bool], ...] = _FILES
    credentials: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ("/var/lib/edge-serve", "/var/cache/edge-serve", "/run/edge-serve")
    writable: tuple[str, ...] | None = ("/var/lib/edge-serve", "/var/cache/edge-serve", "/run/edge-serve", "/tmp")
    hidden: tuple[str, ...] = ("/home", "/root", "/run/user")


@slotted
class UnitEnvironment:
    """The variables that the service would start with, and what is wrong with the files they come from."""

    values: dict[str, str]
    files: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_unit() -> Unit | None:
    """Return the installed service, as systemd has loaded it or, where no systemd runs, as the package ships it."""
    shown = _shown()
    if shown.get("LoadState") == "loaded":
        return unit_from(shown)
    if os.path.exists(UNIT_FILE):
        return Unit(credentials=_credentials("edge-serve:/etc/edge-serve/credentials"))
    return None


def unit_from(shown: Mapping[str, str]) -> Unit:
    """Return what the properties of `systemctl show` say; lists have one value a line."""
    made = [f"{_PARENTS[kind]}/{name}" for kind in _PARENTS for name in shown.get(kind, "").split()]
    strict = shown.get("ProtectSystem") == "strict"
    hidden = shown.get("ProtectHome") in ("yes", "tmpfs")
    files = re.findall(r"^(.+?) \(ignore_errors=(yes|no)\)$", shown.get("EnvironmentFiles", ""), re.MULTILINE)
    paths = [path.lstrip("-+") for path in shown.get("ReadWritePaths", "").split()]
    return Unit(
        user=shown.get("User") or "root",
        environment=dict(one.split("=", 1) for one in shlex.split(shown.get("Environment", "")) if "=" in one),
        files=tuple((path, ignored == "yes") for path, ignored in files),
        credentials=_credentials(shown.get("LoadCredential", "")),
        made=tuple(made),
        writable=(*made, *paths, "/tmp", "/var/tmp", "/dev") if strict else None,
        hidden=("/home", "/root", "/run/user") if hidden else (),
    )


def environment_of(unit: Unit) -> UnitEnvironment:
    """Read the unit's files as systemd does: in their order, a later value in place of an earlier one."""
    found = UnitEnvironment(dict(unit.environment))
    for pattern, optional in unit.files:
        paths = sorted(glob.glob(pattern))
        if not paths and not optional:
            found.problems.append(f"{pattern}: no such file, and EnvironmentFile= of {NAME} demands one")
        for path in paths:
            _read(path, found)
    return found


def _read(path: str, found: UnitEnvironment) -> None:
    try:
        file = parse_environment_file(read_small(path))
    except OSError as error:
        found.problems.append(f"{path}: cannot be read: {error.strerror}; systemd passes over it without a word")
        return
    found.files.append(path)
    found.values |= file.values
    found.problems += [f"{path} line {line}: {text}" for line, text in file.problems]


def _credentials(text: str) -> dict[str, str]:
    """Return the source of each credential; those of a directory are named <id>_<file>."""
    found: dict[str, str] = {}
    for identity, colon, source in (line.partition(":") for line in text.splitlines()):
        path = Path(source.strip())
        if not colon:
            continue
        seen = f"/run/credentials/{NAME}/{identity.strip()}"
        try:
            found |= {f"{seen}_{one.name}": str(one) for one in path.iterdir()} if path.is_dir() else {seen: str(path)}
        except OSError:  # only root may read it; the check that needs it reports it as missing
            continue
    return found


def _shown() -> dict[str, str]:
    """Return the properties of the loaded unit; nothing where no systemd answers."""
    shown = systemctl("show", NAME, *(f"--property={name}" for name in _PROPERTIES))
    # `show` cannot print this property before systemd 253
    credentials = [line for line in systemctl("cat", NAME).splitlines() if line.startswith("LoadCredential=")]
    return properties_of((*shown.splitlines(), *credentials))


def properties_of(lines: Iterable[str]) -> dict[str, str]:
    """Return the properties that `systemctl show` prints, a name that comes again with one value a line."""
    found: dict[str, str] = {}
    for name, equals, value in (line.partition("=") for line in lines):
        if equals:
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


def systemctl(*arguments: str) -> str:
    """Return what systemctl prints; "" where it is missing, fails or does not answer."""
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
