"""Checks the values of `edge-serve.toml`, and makes the configuration. Finds all mistakes, not only the first."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from image.device import files
from image.device.provision import texts
from image.device.provision.configuration import (
    PAIRS,
    STORED,
    ClientToken,
    Configuration,
    StoredSecrets,
    has_stored_login,
    is_inline,
    without_login,
)
from image.device.provision.mistakes import Mistake, Refused, nearest, quoted
from image.device.provision.read import Parsed
from image.device.provision.schema import KEYS, Key, Kind

ROLES = ("health", "read", "infer", "admin")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_TOKEN = re.compile(r"[\x21-\x7e]{32,512}")
_TOKEN_NAME = re.compile(r"[\w.@:/-]{1,128}", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_LOST = "the device has no stored value (was it reset?)"
#: secret key -> what the device does while it is lost
_UNTIL = {
    "server.tls_key": "until then the server has no TLS",
    "ota.client_key": "until then updates are fetched without this certificate",
}


def check(parsed: Parsed, folder: Path, stored: StoredSecrets, zones: Path) -> Configuration:
    """Return the configuration that a text of the right shape describes. Values without their secret may be left out.

    Args:
        folder: the boot partition, with the files that the text names.
        stored: values that the device has removed from the boot partition.
        zones: the directory of time zones.

    Raises:
        Refused: one or more values are wrong.
    """
    checker = _Checker(parsed, stored)
    host, network, ota = checker.table("host"), checker.table("network"), checker.table("ota")
    server, ssh = checker.table("server"), checker.table("ssh")
    checker.texts("host.name", texts.host_name)
    checker.texts("host.timezone", lambda text: texts.time_zone(text, zones))
    addresses = checker.network()
    checker.texts("ota.window", texts.window)
    checker.texts("ssh.keys", texts.ssh_key)
    for name, text in server.get("settings", {}).items():
        checker.add(("server", "settings", name), texts.setting(name, text))
    configuration = Configuration(
        name=host.get("name", ""),
        timezone=host.get("timezone", ""),
        interface=network.get("interface", ""),
        addresses=addresses,
        dhcp=network.get("address") == "dhcp",
        gateway=network.get("gateway", ""),
        dns=tuple(network.get("dns", ())),
        proxy=next(iter(checker.urls("network.proxy", texts.proxy)), ""),
        ntp=tuple(network.get("ntp", ())),
        urls=tuple(checker.urls("ota.url", texts.url)),
        replace_root=ota.get("replace_root", False),
        window=ota.get("window", ""),
        tokens=tuple(checker.tokens()),
        settings=dict(server.get("settings", {})),
        ssh_keys=tuple(ssh.get("keys", ())),
        files=checker.files(folder),
        lost=tuple(sorted(checker.lost)),
    )
    checker.pairs()
    if checker.mistakes:
        raise Refused([*checker.mistakes, *checker.lost])
    return configuration


class _Checker:
    def __init__(self, parsed: Parsed, stored: StoredSecrets) -> None:
        self._parsed = parsed
        self._stored = stored
        self.mistakes: list[Mistake] = []
        self.lost: list[Mistake] = []

    def table(self, name: str) -> dict[str, Any]:
        found = self._parsed.values.get(name, {})
        assert isinstance(found, dict)
        return found

    def value(self, name: str) -> Any:
        table, _, key = name.partition(".")
        return self.table(table).get(key)

    def add(self, path: tuple[str | int, ...], reasons: Iterable[str], lost: bool = False) -> None:
        name = ".".join(str(part) for part in path[:2])
        line = self._parsed.line(*path)
        found = self.lost if lost else self.mistakes
        found += [Mistake(line, f"{name}: {reason}") for reason in reasons]

    def texts(self, name: str, check: Callable[[str], Iterator[str]]) -> None:
        """Check a text, or each text of a list."""
        table, _, key = name.partition(".")
        found = self.value(name)
        if isinstance(found, str):
            self.add((table, key), check(found))
        for i, one in enumerate(found if isinstance(found, list) else ()):
            self.add((table, key, i), check(one))

    def network(self) -> tuple[str, ...]:
        before = len(self.mistakes)
        fixed = isinstance(self.value("network.address"), list)
        addresses = tuple(self.value("network.address")) if fixed else ()
        self.texts("network.interface", texts.interface)
        if fixed:
            self.texts("network.address", texts.address)
            if not addresses:
                self.add(("network", "address"), ['found an empty list, expected an address, or "dhcp"'])
        for name in ("gateway", "dns"):
            self.texts(f"network.{name}", texts.ip)
            if self.value(f"network.{name}") is not None and not fixed:
                text = "expected only with fixed addresses: add address = [...], or remove this line"
                self.add(("network", name), [text])
        self.texts("network.ntp", texts.host_or_address)
        gateway = self.value("network.gateway")
        if gateway is not None and len(self.mistakes) == before:
            self.add(("network", "gateway"), texts.gateway(gateway, addresses))
        return tuple(str(ipaddress.ip_interface(one)) for one in addresses) if len(self.mistakes) == before else ()

    def urls(self, name: str, check: Callable[[str], Iterator[str]]) -> Iterator[str]:
        """Check addresses. Yield them with the logins that were removed from the boot partition."""
        table, _, key = name.partition(".")
        found = self.value(name)
        known = {without_login(one): one for one in self._stored.logins}
        for i, one in enumerate(found if isinstance(found, list) else [found] if isinstance(found, str) else []):
            if not has_stored_login(one):
                self.add((table, key, i), check(one))
                yield one
            elif one in known:
                yield known[one]
            else:
                lost = self._stored.may_lack(one)
                until = "; until then this address is not used" if lost else ""
                self.add((table, key, i), [f"{_LOST}: write user and password again{until}"], lost)

    def tokens(self) -> Iterator[ClientToken]:
        digests: set[str] = set()
        for i, row in enumerate(self.value("server.tokens") or ()):
            reasons = list(_token_mistakes(row))
            digest = ""
            if not reasons:
                text = row.get("token")
                digest = hashlib.sha256(text.encode()).hexdigest() if text else row["hash"].removeprefix("sha256:")
                if digest in digests:
                    reasons = ["found the same token twice, expected one for each client"]
                digests.add(digest)
                yield ClientToken(row["name"], row["role"], digest)
            for reason in reasons:
                self.add(("server", "tokens", i, reason.partition(":")[0]), [reason])

    def files(self, folder: Path) -> dict[str, bytes]:
        """Return the contents of all files."""
        return {key.name: data for key in KEYS if (data := self._file(key, folder)) is not None}

    def _file(self, key: Key, folder: Path) -> bytes | None:
        """Return the content for a key of a file: inline, from the boot partition, or stored earlier."""
        text = self.value(key.name)
        if key.kind is not Kind.FILE or text is None:
            return None
        stored, lost = self._stored.files.get(key.name), False
        if is_inline(text):
            data: bytes = text.encode()
            if len(data) <= key.most:
                return data
            reason = f"found {len(data)} bytes, expected at most {key.most}"
        elif text == STORED:
            if stored is not None:
                return stored
            reason, lost = f"{_LOST}: put the value here again", key.secret
        elif not _FILE_NAME.fullmatch(text):
            reason = f"found {_shown(key, text)}, expected the name of a file beside edge-serve.toml, or its text"
        else:
            try:
                return files.read(folder / text, key.most)
            except FileNotFoundError:
                if stored is not None and self._stored.names.get(key.name) == text:
                    return stored
                reason = f"there is no file {text} on the boot partition: copy it beside edge-serve.toml"
                lost = text in self._removed()
            except (files.NotRegular, files.TooLong) as error:
                reason = f"{text}: found {error}, expected a file of at most {key.most} bytes"
            except OSError as error:
                reason = f"{text} cannot be read: {error.strerror}; copy it again"
        lost = lost and self._stored.may_lack(key.name)
        self.add(key.path, [f"{reason}; {_UNTIL[key.name]}" if lost and key.secret else reason], lost)
        return None

    def _removed(self) -> set[str]:
        """Return the names of the files that are removed as secrets. A certificate may lie in its key's file."""
        return {self.value(key.name) for key in KEYS if key.secret and key.kind is Kind.FILE}

    def pairs(self) -> None:
        """Require both files of a certificate and its key."""
        for names in PAIRS:
            there = [name for name in names if self.value(name) is not None]
            if len(there) == 1:
                other = next(name for name in names if name not in there)
                table, _, key = there[0].partition(".")
                self.add((table, key), [f"expected {other} with it"])


def _shown(key: Key, text: str) -> str:
    return "another text" if key.secret else quoted(text)


def _token_mistakes(row: dict[str, Any]) -> Iterator[str]:
    """Yield the mistakes of a token. Nothing is quoted, because a token may stand in the place of any key or value."""
    known = ("name", "role", "token", "hash")
    for name, value in row.items():
        if name not in known:
            yield f"found another key{nearest(name, known) or '; expected ' + ', '.join(known)}"
        elif not isinstance(value, str):
            yield f"{name}: expected text"
    if not _TOKEN_NAME.fullmatch(str(row.get("name", ""))):
        yield "name: expected up to 128 letters, digits, and _ . @ : / -"
    if row.get("role") not in ROLES:
        yield f"role: expected one of {', '.join(ROLES)}{nearest(str(row.get('role', '')), ROLES)}"
    if ("token" in row) == ("hash" in row):
        yield "expected either token or hash"
    elif "token" in row and not _TOKEN.fullmatch(str(row["token"])):
        yield "token: expected at least 32 characters without blanks, as `openssl rand -hex 32` prints"
    elif "hash" in row and not _HASH.fullmatch(str(row["hash"])):
        yield "hash: expected sha256: and 64 hexadecimal digits, as 'edge-serve token' writes"
