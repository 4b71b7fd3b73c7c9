"""The configuration of a device, as plain values: the accepted content of `edge-serve.toml` and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from image.device.provision.mistakes import Mistake

#: a host name: one label of RFC 1123, in lower case
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
#: stands on the boot partition for a value that the data partition has
STORED = "(stored)"
#: certificates and their keys
PAIRS = (("server.tls_cert", "server.tls_key"), ("ota.client_cert", "ota.client_key"))


class ClientToken(NamedTuple):
    """A client's token of the server. `digest` is the SHA-256 of its characters, in hexadecimal."""

    name: str
    role: str
    digest: str


class Configuration(NamedTuple):
    """The values of all keys; "", () or {} = not given.

    Attributes:
        urls, proxy: with user and password, if they have one.
        files: key (`ota.root`) -> content.
        settings: variable of the server -> its value.
        closed: whether the server requires tokens although none is given here, so that it refuses all clients but those
            with a token that an operator made on the device.
        lost: the values that are left out, because the device has lost their secrets.
    """

    name: str = ""
    timezone: str = ""
    interface: str = ""
    addresses: tuple[str, ...] = ()
    dhcp: bool = False
    gateway: str = ""
    dns: tuple[str, ...] = ()
    proxy: str = ""
    ntp: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    replace_root: bool = False
    window: str = ""
    tokens: tuple[ClientToken, ...] = ()
    settings: Mapping[str, str] = MappingProxyType({})
    ssh_keys: tuple[str, ...] = ()
    files: Mapping[str, bytes] = MappingProxyType({})
    lost: tuple[Mistake, ...] = ()
    closed: bool = False

    def used_files(self) -> Mapping[str, bytes]:
        """Return the files without the certificates whose keys are lost."""
        unused = {cert for cert, key in PAIRS if key not in self.files}
        return {name: data for name, data in self.files.items() if name not in unused}


class StoredSecrets(NamedTuple):
    """The values that an earlier configuration left on the data partition.

    Attributes:
        files: key -> content.
        names: key -> name of the file, as that configuration wrote it.
        logins: addresses with user and password.
        lost: texts of addresses, and keys, whose secret that configuration had lost before; None = there is none, as
            after a factory reset, so that all may be lost.
    """

    files: Mapping[str, bytes] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    logins: tuple[str, ...] = ()
    lost: frozenset[str] | None = None

    def may_lack(self, text: str) -> bool:
        """Return whether a key, or the text of an address, may be without its secret: the rest then applies."""
        return self.lost is None or text in self.lost


def without_login(url: str) -> str:
    """Return an address with its user and password replaced by the mark for stored values."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    return f"{scheme}{separator}{STORED}@{host}{slash}{path}" if at and login else url


def has_stored_login(url: str) -> bool:
    """Return whether an address has the mark in place of its user and password."""
    return f"//{STORED}@" in url


def is_inline(text: str) -> bool:
    """Return whether the value of a file's key is the content itself, and not a name."""
    return "\n" in text or text.lstrip().startswith(("{", "-----BEGIN"))
