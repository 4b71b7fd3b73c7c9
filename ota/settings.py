"""The agent's settings: one table, from which the file, the environment, the flags, `--help`, and the docs are derived.

Precedence: flag, environment (`EDGE_OTA_URL`), the file (`URL=...` lines in /etc/edge-ota/edge-ota.conf), default.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ota.errors import UsageError

FILE = Path("/etc/edge-ota/edge-ota.conf")
#: the file in messages, which do not know the command line
NAMED_FILE = f"the settings file ({FILE}, or that of --config or EDGE_OTA_CONFIG)"
PREFIX = "EDGE_OTA_"
#: variables of `edge-ota publish`, which no device has
PUBLISH_PREFIX = "EDGE_OTA_PUBLISH_"
#: least values of numbers, if more than 0: without a try, or with every release too slow, no release could become good
LEAST: Mapping[str, int] = {"tries": 1, "most_slower": 1}


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """The help text of a setting, and the word for its value in `--help`."""

    text: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of the agent. `state_dir` is the flag --state-dir, EDGE_OTA_STATE_DIR, and the line STATE_DIR=..."""

    url: Annotated[
        tuple[str, ...], SettingDoc("where the repository is: one or several mirrors, tried in order", "URL ...")
    ] = ()
    root: Annotated[Path, SettingDoc("the trusted root metadata; without it no update runs")] = Path(
        "/etc/edge-ota/root.json"
    )
    device_file: Annotated[Path, SettingDoc("this device's document, if it was delivered as a file")] = Path(
        "/etc/edge-ota/device.json"
    )
    device: Annotated[str, SettingDoc("this device's name; empty = from its key")] = ""
    state_dir: Annotated[Path, SettingDoc("metadata, blobs, releases, journal, reports")] = Path("/var/lib/edge-ota")
    floor_copy: Annotated[Path, SettingDoc("the second place of the version floors: another partition")] = Path(
        "/etc/edge-ota/floors/floors.json"
    )
    model_repository: Annotated[Path, SettingDoc("where edge-serve finds models; links go here")] = Path(
        "/var/lib/edge-serve/models"
    )
    admin_socket: Annotated[str, SettingDoc("edge-serve's socket for administration, or its http:// address")] = (
        "/run/edge-serve/admin.sock"
    )
    edge_serve: Annotated[str, SettingDoc("the program that trials and builds run")] = "/opt/edge-serve/bin/edge-serve"
    trial_socket: Annotated[str, SettingDoc("the socket of the unit for trials; empty = as a child process")] = (
        "/run/edge-ota/trial.sock"
    )
    build_socket: Annotated[str, SettingDoc("the socket of the unit for builds; empty = as a child process")] = (
        "/run/edge-ota/build.sock"
    )
    pkcs11_module: Annotated[str, SettingDoc("the library of a token that holds the device's key; empty = a file")] = ""
    pkcs11_token: Annotated[str, SettingDoc("the label of that token")] = "edge-ota"
    pkcs11_pin_file: Annotated[Path, SettingDoc("a file with the PIN of that token")] = Path("/etc/edge-ota/pin")
    ca_cert: Annotated[str, SettingDoc("PEM file with the CA certificates of the repository; empty = the system's")] = (
        ""
    )
    client_cert: Annotated[str, SettingDoc("PEM file with this device's certificate for TLS")] = ""
    client_key: Annotated[str, SettingDoc("PEM file with the key of that certificate")] = ""
    proxy: Annotated[str, SettingDoc("http:// address of a proxy; empty = none, and the environment is not asked")] = ""
    rate_limit: Annotated[int, SettingDoc("most bytes per second of a download; 0 = no limit", "BYTES")] = 0
    download_hours: Annotated[
        str, SettingDoc("local hours in which blobs are fetched, such as 22:00-06:00; empty = always")
    ] = ""
    metered: Annotated[bool, SettingDoc("the link costs money: metadata only, until 'edge-ota apply'")] = False
    timeout: Annotated[float, SettingDoc("how long the network may be silent", "SECONDS")] = 30.0
    most_minutes: Annotated[float, SettingDoc("how long one run may fetch; the next run resumes", "MINUTES")] = 360.0
    quota: Annotated[int, SettingDoc("most bytes of blobs and releases; 0 = the disk's size", "BYTES")] = 0
    reserve: Annotated[int, SettingDoc("bytes of the disk that stay free", "BYTES")] = 256 * 1024 * 1024
    report_url: Annotated[
        str, SettingDoc("where reports are PUT; empty = as the rollout document says, '-' = nowhere")
    ] = ""
    trial_timeout: Annotated[float, SettingDoc("how long a trial may take", "SECONDS")] = 900.0
    probation_seconds: Annotated[float, SettingDoc("how long a new release is watched", "SECONDS")] = 600.0
    probation_requests: Annotated[
        int, SettingDoc("after so many requests it may become good; without traffic, golden tests count")
    ] = 500
    most_failures: Annotated[
        float, SettingDoc("share of requests that may fail more than with the release before", "SHARE")
    ] = 0.02
    most_slower: Annotated[
        float, SettingDoc("how many times longer executions may take (99 %) than with the release before, at least 1")
    ] = 1.5
    tries: Annotated[
        int,
        SettingDoc(
            "starts of a release's build, of its trial, and of the service in its probation, the last of which rolls "
            "it back; at least 1"
        ),
    ] = 3
    system_window: Annotated[
        str, SettingDoc("local hours for updates of the system, such as 02:00-05:00, if the rollout names none")
    ] = ""
    system_root: Annotated[Path, SettingDoc("where the files and the socket of the device image are; for tests")] = (
        Path("/")
    )
    allow_expired_days: Annotated[
        float, SettingDoc("for 'import' at the device: accept metadata that expired so long ago", "DAYS")
    ] = 0.0


def find_file(named: str, environ: Mapping[str, str]) -> Path:
    """Return the settings file: the one that --config names, else that of the environment, else the packaged one."""
    return Path(named or environ.get(f"{PREFIX}CONFIG", FILE))


def read_settings(
    flags: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> AgentSettings:
    """Return the settings in effect.

    Args:
        flags: name of a setting -> the text of its flag.
        file: the settings file; None = `EDGE_OTA_CONFIG`, else the packaged one, which are empty if not there.
        warn: receives the message about each wrong setting, whose default then counts; None = raise it.

    Raises:
        UsageError: no such file, an unknown name, or a value of the wrong kind; the message names the place.
    """
    environ = os.environ if environ is None else environ
    path = file or find_file("", environ)
    found: dict[str, tuple[str, str]] = {}
    with _warned(warn):
        if file is not None and not os.path.lexists(file):
            raise UsageError(f"--config: {file} does not exist; expected lines such as URL=https://ota.example")
        found = {name: (text, f"{path}, line {line}") for name, (text, line) in _read_file(path, warn).items()}
    found |= {
        name[len(PREFIX) :].lower(): (text, name)
        for name, text in environ.items()
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG" and not name.startswith(PUBLISH_PREFIX)
    }
    found |= {name: (text, "--" + name.replace("_", "-")) for name, text in flags.items()}
    known = {one.name: one for one in fields(AgentSettings)}
    values = {}
    for name, (text, place) in found.items():
        with _warned(warn):
            if name not in known:
                raise UsageError(f"{place}: unknown setting {name.upper()}{_nearest(name, list(known))}")
            values[name] = _value(known[name].default, text, place, LEAST.get(name, 0))
    return AgentSettings(**values)


@contextlib.contextmanager
def _warned(warn: Callable[[str], None] | None) -> Iterator[None]:
    """Report a wrong setting to `warn`, if there is one, instead of raising it."""
    try:
        yield
    except UsageError as error:
        if warn is None:
            raise
        warn(f"{error.message}; this is ignored")


def _read_file(path: Path, warn: Callable[[str], None] | None) -> dict[str, tuple[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        name, equals, value = line.partition("=")
        with _warned(warn):
            if not equals or not re.fullmatch("[A-Z][A-Z0-9_]*", name.strip()):
                text = f"{path}, line {number}: {line[:60]!r} is not a setting"
                raise UsageError(f"{text}; expected NAME=value, such as URL=https://ota.example")
            found[name.strip().lower()] = (value.strip().strip('"'), number)
    return found


def _value(default: Any, text: str, place: str, least: int) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(text.split())
        if isinstance(default, (int, float)):
            value = type(default)(text)
            if not least <= value < 1e15:
                raise ValueError
            return value
    except (ValueError, KeyError):
        kind = "true or false" if isinstance(default, bool) else f"a number of at least {least}"
        raise UsageError(f"{place}: found {text[:60]!r}, expected {kind}") from None
    if isinstance(default, str):
        return text
    return Path(text).absolute()  # links into the state directory must work from everywhere


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0].upper()}?" if close else ""
