"""Texts that nobody would write by hand: each is accepted or refused, and an accepted one loses its secrets."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from image.device.provision import schema, secrets, store
from image.device.provision.checks import check
from image.device.provision.configuration import Configuration, StoredSecrets
from image.device.provision.mistakes import Refused
from image.device.provision.read import Parsed, parse
from image.device.provision.schema import KEYS, Kind
from tests.examples import examples

_TOKEN = "geheim0123456789abcdef0123456789abcdef"
_PEM = '"""-----BEGIN PRIVATE KEY-----\ngeheim"\n-----END-----\n"""'
_TOKENS = [
    f'[{{name = "a", role = "infer", {spelled} = "{_TOKEN}"}}, {{ "role"="read",name="b","hash"="sha256:{"0" * 64}" }}]'
    for spelled in ("token", '"token"', '"tok\\u0065n"', "'token'")
]
#: key -> values that are right for it; those with `geheim` are secrets
_RIGHT = {
    "host.name": ['"edge-1"', "'e'"],
    "host.timezone": ['"Europe/Berlin"'],
    "network.address": ['"dhcp"', "['10.0.0.2/24',\n 'fd00::2/64' ]"],
    "network.ntp": ["['a.example', # one\n]", "[]"],
    "network.proxy": ['"http://me:geheim@host:1"', "'http://host'"],
    "ota.url": ["['https://me:geheim@a.example', \"http://b\"]", '["http://a"]'],
    "ota.client_cert": ["'''-----BEGIN'''"],
    "ota.client_key": [_PEM, "'''-----BEGIN geheim'''"],
    "server.tls_cert": ["'-----BEGIN'"],
    "server.tls_key": [_PEM],
    "server.tokens": _TOKENS,
    "server.settings": ['{"EDGE_SERVE_A" = "1", "EDGE_SERVE_\\u0042" = "2"}', "{'EDGE_SERVE_A' = ''}"],
}
_WRONG = [
    "1",
    "true",
    "[]",
    "{}",
    "[[1], {a.b = 1979-05-27}]",
    '"\\u0000"',
    "'" + "x" * 300 + "'",
    "nan",
    "[{}]",
    '""""""',
]
_MARKS = "\"'[]{}=.,#\\\n\r\t -\x00\u00e9a0"


@st.composite
def _name(draw: st.DrawFn, name: str) -> str:
    """Return a name, spelled in one of the ways of TOML."""
    at = draw(st.integers(0, len(name) - 1))
    escaped = f'"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"'
    return draw(st.sampled_from([name, f'"{name}"', f"'{name}'", escaped]))


@st.composite
def _text(draw: st.DrawFn, wrong: float = 0.0) -> str:
    """Return an edge-serve.toml: some keys, under headers, dotted, or in inline tables."""
    lines = [f"{draw(_name('schema'))} = 1"]
    for table in draw(st.permutations(schema.TABLES)):
        keys = [key for key in KEYS if key.path[0] == table and (key.name in _RIGHT or wrong)]
        pairs = []
        for key in keys:
            if draw(st.integers(0, 2)):
                continue
            bad = wrong and draw(st.floats(0, 1)) < wrong
            value = draw(st.sampled_from(_WRONG if bad or key.name not in _RIGHT else _RIGHT[key.name]))
            pairs.append((draw(_name(key.path[1])), value))
        head = draw(_name(table))
        if draw(st.booleans()):
            lines += [f"[{head}] # {table}", *(f"  {name}={value}" for name, value in pairs)]
        else:  # before the first header, or it would be a part of that table
            lines[1:1] = [f"{head} . {name} = {value}" for name, value in pairs]
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + "\n"


@st.composite
def _changed(draw: st.DrawFn) -> str:
    """Return a text with a few characters that differ."""
    text = draw(_text(0.3))
    for at in draw(st.lists(st.integers(0, len(text)), max_size=3)):
        text = text[:at] + draw(st.text(_MARKS, max_size=3)) + text[at + draw(st.integers(0, 2)) :]
    return text


@dataclass(frozen=True, slots=True)
class _Accepted:
    parsed: Parsed
    configuration: Configuration
    redacted: str


def _tried(data: bytes, stored: StoredSecrets | None = None) -> _Accepted | Refused:
    """Return what provisioning makes of a text; any other error than Refused fails the test."""
    with tempfile.TemporaryDirectory() as name:
        zones = Path(name)
        (zones / "Europe").mkdir()
        (zones / "Europe/Berlin").touch()
        try:
            parsed = parse(data)
            schema.require_shape(parsed)
            configuration = check(parsed, zones, stored or StoredSecrets(), zones)
            return _Accepted(parsed, configuration, secrets.redacted(parsed, configuration))
        except Refused as error:
            assert error.mistakes  # noqa: PT017  # any text may be refused, with a reason
            return error


@examples(25, 600, _changed())
def test_any_text_is_accepted_or_refused(text: str) -> None:
    found = _tried(text.encode())
    if isinstance(found, Refused):
        assert all(len(str(one)) < 500 and one.line <= text.count("\n") + 1 for one in found.mistakes)


@examples(15, 600, st.binary(max_size=64))
def test_any_bytes_are_accepted_or_refused(data: bytes) -> None:
    _tried(b"schema = 1\n" + data)


@examples(25, 600, _text())
def test_an_accepted_text_loses_its_secrets_and_nothing_else(text: str) -> None:
    found = _tried(text.encode())
    if isinstance(found, Refused):
        assert all("with it" in one.text for one in found.mistakes), "a certificate without its key"
        return
    assert "geheim" not in found.redacted
    logins = store.content(found.redacted, found.configuration)["logins"].decode().split("\n")
    again = _tried(found.redacted.encode(), StoredSecrets(found.configuration.files, {}, tuple(logins), frozenset()))
    assert isinstance(again, _Accepted), again
    assert (again.configuration, again.redacted) == (found.configuration, found.redacted)


def test_every_secret_key_is_tried() -> None:
    assert {key.name for key in KEYS if key.secret or key.kind is Kind.TOKENS} <= _RIGHT.keys()
