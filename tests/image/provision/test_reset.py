"""edge-serve.toml after a factory reset: the secrets that the device had removed from it are gone."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from tests.image.provision.board import Board

NETWORK = "run/systemd/network/50-edge-device.network"
SETTINGS = "etc/edge-serve/conf.d/50-device.conf"
TOKEN = "3f0123456789abcdef0123456789abcdef"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
LOST = "the device has no stored value (was it reset?)"
PEM = "-----BEGIN PRIVATE KEY-----"
CERT = "-----BEGIN CERTIFICATE-----"


@pytest.fixture(autouse=True)
def _certificates_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image.device.provision.programs._certificate", lambda *arguments: [])


LOSING = f"""\
[host]
name = "edge-1"
[network]
address = ["10.0.0.2/24"]
proxy = "http://me:word@host:1"
[ota]
url = ["https://me:pass@a.example", "https://b.example"]
client_cert = "client.crt"
client_key = "client.key"
[server]
tls_cert = '''{CERT}'''
tls_key = "{PEM}"
[[server.tokens]]
name = "a"
role = "infer"
token = "{TOKEN}"
"""


def reset(board: Board) -> None:
    """Erase the data partition, and the memory."""
    for name in ("var", "run", "etc/edge-serve", "etc/edge-ota"):
        shutil.rmtree(board.root / name, ignore_errors=True)
    board.state.mkdir(parents=True)


def test_after_a_reset_all_but_the_lost_secrets_applies(board: Board) -> None:
    board.write(CERT, "client.crt")
    board.write(PEM, "client.key")
    assert board.configure(LOSING) == []
    kept = board.text("boot/edge-serve.toml")
    reset(board)
    expected = [
        f"line 6: network.proxy: {LOST}: write user and password again; until then this address is not used",
        f"line 8: ota.url: {LOST}: write user and password again; until then this address is not used",
        "line 10: ota.client_key: there is no file client.key on the boot partition: copy it beside edge-serve.toml; "
        "until then updates are fetched without this certificate",
        f"line 13: server.tls_key: {LOST}: put the value here again; until then the server has no TLS",
    ]
    for _ in range(2):  # the second start reads stored settings that lack the same values
        assert board.boot() == [f"edge-serve.toml, {one}" for one in expected]
        assert set(board.faults()) == {f"settings-{number}" for number in (1, 2, 3, 4)}
        assert board.names[-1] == "edge-1"
        assert "Address=10.0.0.2/24" in (board.text(NETWORK) or "")
        assert f"\ninfer sha256:{HASH} a\n" in (board.text("etc/edge-serve/tokens") or "")
        assert (board.text("etc/edge-ota/edge-ota.conf") or "").splitlines()[1:] == [
            "URL=https://b.example",
            "DEVICE=edge-1",
        ]
        assert board.text("etc/edge-serve/credentials/server.crt") is None
        assert "USE_SSL" not in (board.text(SETTINGS) or "")
        assert board.text("boot/edge-serve.toml") == kept

    board.write(PEM, "client.key")
    text = (kept or "").replace('tls_key = "(stored)"', f'tls_key = "{PEM}"').replace("(stored)@", "me:word@")
    board.write(text)
    assert board.boot() == []
    assert board.faults() == {}
    assert board.text("etc/edge-serve/credentials/server.crt") == CERT
    assert "URL=https://me:word@a.example https://b.example" in (board.text("etc/edge-ota/edge-ota.conf") or "")
    assert sorted(board.files("boot")) == ["client.crt", "edge-serve.toml"]


def test_after_a_reset_a_certificate_that_lay_in_the_file_of_its_key_is_lost_with_it(board: Board) -> None:
    for name in ("server.pem", "client.pem"):
        board.write(PEM, name)
    pairs = """\
[ota]
client_cert = "client.pem"
client_key = "client.pem"
[server]
tls_cert = "server.pem"
tls_key = "server.pem"
"""
    assert board.configure('[host]\nname = "edge-1"\n' + pairs) == []
    assert [(board.root / f"etc/edge-ota/client.{one}").stat().st_mode & 0o777 for one in ("crt", "key")] == [0o600] * 2
    assert board.boot() == []
    reset(board)
    until = ("", "; until then updates are fetched without this certificate", "", "; until then the server has no TLS")
    names = ("ota.client_cert", "ota.client_key", "server.tls_cert", "server.tls_key")
    for _ in range(2):
        found = board.boot()
        assert [one.split(": ")[1] for one in found] == list(names)
        assert [one.partition("edge-serve.toml")[2].partition("edge-serve.toml")[2] for one in found] == list(until)
        assert board.names[-1] == "edge-1"
        assert "USE_SSL" not in (board.text(SETTINGS) or "")

    for name in ("server.pem", "client.pem"):
        board.write(PEM, name)
    assert board.boot() == []
    assert board.text("etc/edge-serve/credentials/server.crt") == PEM


def test_a_stored_mark_that_the_device_did_not_write_is_a_mistake(board: Board) -> None:
    assert board.configure('[host]\nname = "edge-1"\n') == []
    text = '[server]\ntls_cert = "(stored)"\ntls_key = "(stored)"\n[network]\nproxy = "http://(stored)@host:1"\n'
    assert board.configure(text) == [
        f"edge-serve.toml, line 3: server.tls_cert: {LOST}: put the value here again",
        f"edge-serve.toml, line 4: server.tls_key: {LOST}: put the value here again",
        f"edge-serve.toml, line 6: network.proxy: {LOST}: write user and password again",
    ]
    assert board.names[-1] == "edge-1"
