"""Every key of `edge-serve.toml`, in one table. docs/image_settings.md has it as text."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

from image.device.provision.mistakes import Mistake, Refused, nearest, quoted
from image.device.provision.read import Parsed

#: of the file; a device refuses a newer one
SCHEMA = 1


class Kind(enum.Enum):
    """The type of a value, as a message names it."""

    TEXT = "text"
    TEXTS = "a list of texts"
    ADDRESSES = '"dhcp" or a list of texts'
    BOOLEAN = "true or false"
    FILE = "the name of a file beside edge-serve.toml, or its text"
    TOKENS = "tables [[server.tokens]]"
    SETTINGS = "a table of texts"


class Key(NamedTuple):
    """A key.

    Attributes:
        most: entries of a list, or bytes of a file.
        text: its line in the docs.
        secret: its value, or its user and password, are removed from the boot partition. No message quotes it.
    """

    name: str
    kind: Kind
    text: str
    most: int = 8
    secret: bool = False

    @property
    def path(self) -> tuple[str, str]:
        """The table and the name in it."""
        table, _, name = self.name.partition(".")
        return table, name


_PEM = 64 * 1024
_DOCUMENT = 1024 * 1024

KEYS = (
    Key(
        "host.name", Kind.TEXT,
        "name of the device: up to 63 lower-case letters, digits, and `-`. It answers to `<name>.local`",
    ),
    Key("host.timezone", Kind.TEXT, "time zone, such as `Europe/Berlin`; without it UTC"),
    Key(
        "network.interface", Kind.TEXT,
        "network interfaces that the table applies to; a pattern such as `en*`. Without it `en* eth*`",
    ),
    Key(
        "network.address", Kind.ADDRESSES,
        'fixed addresses with their prefix, such as `["192.168.1.20/24"]`, or `"dhcp"`',
    ),
    Key("network.gateway", Kind.TEXT, "default gateway, within a network of `address`; only with fixed addresses"),
    Key("network.dns", Kind.TEXTS, "addresses of name servers; only with fixed addresses"),
    Key("network.proxy", Kind.TEXT, "proxy for updates, `http://host:port`", secret=True),
    Key("network.ntp", Kind.TEXTS, "time servers: names or addresses"),
    Key("ota.url", Kind.TEXTS, "where updates are fetched from: one or several mirrors, tried in order", secret=True),
    Key("ota.root", Kind.FILE, "`root.json` of the publisher. Updates start when it is there", _DOCUMENT),
    Key(
        "ota.replace_root", Kind.BOOLEAN,
        "accept another `root.json` than the device has; remove the line afterwards",
    ),
    Key(
        "ota.device", Kind.FILE,
        "`device.json` of this device from the publisher: its name, fleet, and ring", _DOCUMENT,
    ),
    Key(
        "ota.ca", Kind.FILE,
        "certificates (PEM) that sign the certificate of the update server; without it the system's", _PEM,
    ),
    Key(
        "ota.client_cert", Kind.FILE,
        "certificate (PEM) with which the device identifies itself to the update server", _PEM,
    ),
    Key("ota.client_key", Kind.FILE, "private key (PEM) of that certificate", _PEM, secret=True),
    Key(
        "ota.window", Kind.TEXT,
        "local hours in which the system may be updated, `HH:MM-HH:MM`, unless the rollout names some",
    ),
    Key("server.tls_cert", Kind.FILE, "certificate (PEM) of the server: HTTP then requires TLS", _PEM),
    Key("server.tls_key", Kind.FILE, "private key (PEM) of that certificate", _PEM, secret=True),
    Key("server.tokens", Kind.TOKENS, "clients' tokens: `name`, `role`, and `token` or `hash`", 256, secret=True),
    Key("server.settings", Kind.SETTINGS, "[settings](settings.md) of the server: `EDGE_SERVE_...` = text", 256),
    Key(
        "ssh.keys", Kind.TEXTS,
        "public keys of administrators (lines of `.pub` files). SSH is on if there is one", 64,
    ),
)  # fmt: skip
TABLES = tuple(dict.fromkeys(key.path[0] for key in KEYS))
_NAMES = {
    bool: "the boolean",
    int: "the number",
    float: "the number",
    str: "the text",
    list: "the list",
    dict: "the table",
}


def require_shape(parsed: Parsed) -> None:
    """Check names and types of all keys.

    Raises:
        Refused: one or more are wrong.
    """
    if mistakes := list(_mistakes(parsed)):
        raise Refused(mistakes)


def _mistakes(parsed: Parsed) -> Iterator[Mistake]:
    yield from _schema(parsed)
    for table, content in parsed.values.items():
        if table == "schema":
            continue
        line = parsed.line(table)
        known = [key for key in KEYS if key.path[0] == table]
        if not known:
            yield Mistake(line, f"unknown {_what(content)} {quoted(table)}{_nearest_table(table)}")
        elif not isinstance(content, dict):
            shown = found(content, any(key.secret for key in known))
            yield Mistake(line, f"{table}: found {shown}, expected a table: write [{table}]")
        else:
            yield from _table(parsed, table, content, {key.path[1]: key for key in known})


def _schema(parsed: Parsed) -> Iterator[Mistake]:
    version = parsed.values.get("schema")
    if version is None:
        yield Mistake(1, f"schema is missing: write 'schema = {SCHEMA}' as the first line")
    elif version is True or version != SCHEMA:
        newer = isinstance(version, int) and version > SCHEMA
        hint = "; the file is for a newer system: update this device first" if newer else ""
        yield Mistake(parsed.line("schema"), f"schema: found {quoted(version)}, expected {SCHEMA}{hint}")


def _what(content: object) -> str:
    return "table" if isinstance(content, dict) else "key"


def _nearest_table(name: str) -> str:
    homes = [key.path[0] for key in KEYS if key.path[1] == name]
    if homes:
        return f": it belongs into the table [{homes[0]}]"
    return nearest(name, ("schema", *TABLES)) or f"; expected {', '.join(TABLES)}"


def _table(parsed: Parsed, table: str, content: dict[str, Any], known: dict[str, Key]) -> Iterator[Mistake]:
    for name, value in content.items():
        line = parsed.line(table, name)
        key = known.get(name)
        if key is None:
            close = nearest(name, known) or f"; expected {', '.join(known)}"
            yield Mistake(line, f"{table}: unknown key {quoted(name)}{close}")
        else:
            yield from _type(parsed, key, value, line)


def _type(parsed: Parsed, key: Key, value: object, line: int) -> Iterator[Mistake]:
    good, element = {
        Kind.TEXT: (isinstance(value, str), None),
        Kind.FILE: (isinstance(value, str), None),
        Kind.BOOLEAN: (isinstance(value, bool), None),
        Kind.TEXTS: (isinstance(value, list), str),
        Kind.ADDRESSES: (isinstance(value, list) or value == "dhcp", str),
        Kind.TOKENS: (isinstance(value, list), dict),
        Kind.SETTINGS: (isinstance(value, dict), str),
    }[key.kind]
    if not good:
        yield Mistake(
            line, f"{key.name}: found {found(value, key.secret)}, expected {key.kind.value}{_hint(key, value)}"
        )
        return
    inner: list[tuple[str | int, object]] = []
    if element is not None and isinstance(value, dict):
        inner = list(value.items())
    elif element is not None and isinstance(value, list):
        inner = list(enumerate(value))
    if len(inner) > key.most:
        yield Mistake(line, f"{key.name}: found {len(inner)} entries, expected at most {key.most}")
    for name, one in inner:
        if element is not None and not isinstance(one, element):
            where = f"{key.name}.{name}" if isinstance(value, dict) else key.name
            expected = _NAMES[element].removeprefix("the ")
            hint = _hint(key, one) if element is str else ""
            shown = found(one, key.secret)
            yield Mistake(parsed.line(*key.path, name), f"{where}: found {shown}, expected {expected}{hint}")


def found(value: object, secret: bool = False) -> str:
    """Return a value with its type, as a message quotes it. A secret is not quoted."""
    name = _NAMES.get(type(value), "the date or time")
    return name if secret or isinstance(value, (dict, list)) else f"{name} {quoted(value)}"


def _hint(key: Key, value: object) -> str:
    if key.kind is Kind.TEXTS and isinstance(value, str):
        return f": write [{quoted('...' if key.secret else value)}]".replace("'", '"')
    if type(value) in (int, float) and key.kind is not Kind.BOOLEAN and not key.secret:
        return f': write "{value}"'
    return ""
