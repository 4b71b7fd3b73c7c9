"""Derives the system's files from the configuration: what each service reads. `derive` decides, `put` writes.

All files are compared first, so that a boot without changes writes nothing to the data partition.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from image.device import files
from image.device.provision.configuration import LABEL, Configuration, without_login

STATE = "var/lib/edge-device"
_SERVER, _OTA = "etc/edge-serve", "etc/edge-ota"
_CREDENTIALS = "/run/credentials/edge-serve.service/edge-serve_"
_HEAD = "# Written at each boot from edge-serve.toml on the boot partition. Change that file.\n"
#: key of a file -> path
_FILES = {
    "ota.root": f"{_OTA}/root.json",
    "ota.device": f"{_OTA}/device.json",
    "ota.ca": f"{_OTA}/ca.pem",
    "ota.client_cert": f"{_OTA}/client.crt",
    "ota.client_key": f"{_OTA}/client.key",
    "server.tls_cert": f"{_SERVER}/credentials/server.crt",
    "server.tls_key": f"{_SERVER}/credentials/server.key",
}
_SETTINGS = f"{_SERVER}/conf.d/50-device.conf"
_TOKENS = f"{_SERVER}/tokens"
_AGENT = f"{_OTA}/edge-ota.conf"
_SSH = f"{STATE}/ssh/authorized_keys"
_NETWORK = "run/systemd/network/50-edge-device.network"
# the copy of a file in /run, and of what is set in memory
_NETWORK_COPY = f"{STATE}/network"
_NAME = f"{STATE}/name"
_ZONE = f"{STATE}/timezone"
_MOST = 4 * 1024 * 1024


class WantedFile(NamedTuple):
    """A file of the system.

    Attributes:
        path: without the leading /.
        data: None = there must be no such file.
        owner: name of a user; group: of the user whose group it is.
        head: first line of a file that operators write too. Empty data leave a file without it as it is.
    """

    path: str
    data: bytes | None
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"
    head: bytes = b""


def derive(configuration: Configuration, name: str) -> list[WantedFile]:
    """Return the files for a configuration.

    Args:
        name: of the device.
    """
    given = configuration.used_files()
    tokens = (f"{one.role} sha256:{one.digest} {one.name}" for one in configuration.tokens)
    keys = "".join(f"{one}\n" for one in configuration.ssh_keys)
    return [
        *(_file(key, path, given.get(key)) for key, path in _FILES.items()),
        WantedFile(_SETTINGS, _text(_settings(configuration))),
        WantedFile(_TOKENS, _text(tokens) or b"", 0o640, group="edge-serve", head=_HEAD.encode()),
        _agent(configuration, name),
        WantedFile(_SSH, keys.encode() or None, 0o600),
        *(WantedFile(path, _text(_network(configuration))) for path in (_NETWORK, _NETWORK_COPY)),
        WantedFile(_NAME, f"{name}\n".encode()),
        WantedFile(_ZONE, f"{configuration.timezone}\n".encode() if configuration.timezone else None),
    ]


def _file(key: str, path: str, data: bytes | None) -> WantedFile:
    if key in ("ota.client_cert", "ota.client_key"):  # one file may have both
        return WantedFile(path, data, 0o600, owner="edge-ota")
    return WantedFile(path, data, 0o600 if key.startswith("server.") else 0o644)


def _text(lines: Iterator[str]) -> bytes | None:
    found = list(lines)
    return (_HEAD + "\n".join(found) + "\n").encode() if found else None


def _settings(configuration: Configuration) -> Iterator[str]:
    if "server.tls_cert" in configuration.used_files():
        for door in ("HTTP", "GRPC"):
            yield f"EDGE_SERVE_{door}_USE_SSL=true"
            yield f"EDGE_SERVE_{door}_SERVER_CERT={_CREDENTIALS}server.crt"
            yield f"EDGE_SERVE_{door}_SERVER_KEY={_CREDENTIALS}server.key"
    if configuration.tokens or configuration.closed:
        yield f"EDGE_SERVE_TOKEN_FILE=/{_TOKENS}"
    for name, text in configuration.settings.items():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        yield f'{name}="{escaped}"'


def _agent(configuration: Configuration, name: str) -> WantedFile:
    given = configuration.used_files()
    rows = {
        "URL": " ".join(configuration.urls),
        "DEVICE": device_of(given.get("ota.device")) or configuration.name,
        "SYSTEM_WINDOW": configuration.window,
        "PROXY": configuration.proxy,
        "CA_CERT": "/" + _FILES["ota.ca"] if "ota.ca" in given else "",
        "CLIENT_CERT": "/" + _FILES["ota.client_cert"] if "ota.client_cert" in given else "",
        "CLIENT_KEY": "/" + _FILES["ota.client_key"] if "ota.client_key" in given else "",
    }
    secret = any(without_login(one) != one for one in (configuration.proxy, *configuration.urls))
    data = _text(f"{key}={value}" for key, value in rows.items() if value)
    return WantedFile(_AGENT, data, 0o600 if secret else 0o644, owner="edge-ota" if secret else "root")


def device_of(document: bytes | None) -> str:
    """Return the name in the document of a device; "" = there is none."""
    try:
        found = json.loads(document or b"{}").get("device", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _network(configuration: Configuration) -> Iterator[str]:
    if not any((configuration.interface, configuration.addresses, configuration.dhcp, configuration.ntp)):
        return
    yield from ("[Match]", f"Name={configuration.interface or 'en* eth*'}", "[Link]", "RequiredForOnline=no")
    # the server of the image starts and stops beside the network, and its last answers need the address
    yield from ("[Network]", "MulticastDNS=yes", "LLMNR=no", "KeepConfiguration=dynamic-on-stop")
    yield from (f"Address={one}" for one in configuration.addresses)
    if not configuration.addresses:
        yield "DHCP=yes"
    if configuration.gateway:
        yield f"Gateway={configuration.gateway}"
    yield from (f"DNS={one}" for one in configuration.dns)
    yield from (f"NTP={one}" for one in configuration.ntp)
    yield from ("[DHCPv4]", "UseHostname=no", "UseTimezone=no")


def name_of(configuration: Configuration, machine_id: str) -> str:
    """Return the name of the device: from the configuration, its document, or the machine ID."""
    document = device_of(configuration.files.get("ota.device"))
    default = f"edge-{hashlib.sha256(machine_id.encode()).hexdigest()[:6]}"
    return configuration.name or (document if LABEL.fullmatch(document) else "") or default


def restore(root: Path) -> tuple[str, str]:
    """Write the file of the network as it was at the last start. Return name and time zone of that start; "" = none.

    Raises:
        OSError: the file cannot be written.
    """
    put([WantedFile(_NETWORK, files.read_if_there(root / _NETWORK_COPY, _MOST))], root)
    kept = [(files.read_if_there(root / one, _MOST) or b"").decode(errors="replace").strip() for one in (_NAME, _ZONE)]
    return kept[0] if LABEL.fullmatch(kept[0]) else "", kept[1]


def put(wanted: Sequence[WantedFile], root: Path) -> list[str]:
    """Write and remove the files that differ. Return their paths.

    Args:
        root: / but in tests.

    Raises:
        OSError: one or more could not be written; the others were.
    """
    changed, errors = [], []
    for one in wanted:
        try:
            if _put(one, root / one.path):
                changed.append(one.path)
        except OSError as error:
            errors.append(f"/{one.path}: {error.strerror or error}")
    if errors:
        raise OSError("; ".join(errors))
    return changed


def _put(wanted: WantedFile, path: Path) -> bool:
    if wanted.data is None:
        return files.remove(path)
    owner = (_user(wanted.owner)[0], _user(wanted.group)[1])
    before = files.read_if_there(path, _MOST)
    if not wanted.data and before and not before.startswith(wanted.head):
        return False
    if before == wanted.data:
        found = path.stat()
        if found.st_mode & 0o777 == wanted.mode and (os.geteuid() != 0 or (found.st_uid, found.st_gid) == owner):
            return False
    files.make_directory(path.parent, 0o700 if path.parent.name in ("credentials", "ssh") else 0o755)
    files.replace(path, wanted.data, wanted.mode, owner if os.geteuid() == 0 else None)
    return True


def _user(name: str) -> tuple[int, int]:
    """Return uid and gid; root's where there is no such user."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return 0, 0
    return found.pw_uid, found.pw_gid
