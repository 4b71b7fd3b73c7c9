"""Checks by real programs and libraries: certificates, keys of SSH, OTA documents, and settings of the server."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from image.device.provision import programs, texts
from ota.settings import read_settings
from tests.certificates import Authority
from tests.image.provision.board import Board, installed
from tests.ota.simulator import Repository

TLS = '[server]\ntls_cert = "a.crt"\ntls_key = "a.key"\n[ota]\nca = "ca.pem"\nroot = "root.json"\n'


def public_key(folder: Path, *options: str) -> str:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", str(folder / "key"), *options], check=True)
    return (folder / "key.pub").read_text().strip()


@pytest.mark.parametrize("options", [("-t", "ed25519"), ("-t", "ecdsa", "-b", "384")])
def test_keys_of_ssh_keygen_are_accepted_and_cut_ones_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    key = public_key(tmp_path, *options)
    assert list(texts.ssh_key(key)) == []
    cut = key.split()
    assert "damaged" in "".join(texts.ssh_key(f"{cut[0]} {cut[1][:-8]} {cut[2]}"))


@pytest.mark.parametrize(("bits", "accepted"), [(2048, False), (3071, False), (3072, True)])
def test_short_keys_of_rsa_are_refused(bits: int, accepted: bool) -> None:
    number = (1 << (bits - 1) | 1).to_bytes(bits // 8 + 1, "big")
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-rsa", b"\1\0\1", number))
    found = list(texts.ssh_key(f"ssh-rsa {base64.b64encode(blob).decode()} someone"))
    complaint = f"found an RSA key of {bits} bits, expected at least 3072: use ssh-keygen -t ed25519"
    assert found == ([] if accepted else [complaint])


def test_a_certificate_with_its_key_is_accepted_and_others_are_refused(board: Board, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue(), authority.issue()
    board.write(pair.certificate.read_bytes(), "a.crt")
    board.write(authority.root.read_bytes(), "ca.pem")
    board.write("{}", "root.json")
    for key, complaint in (
        (other.key.read_bytes(), "line 4: server.tls_key: the key does not fit the certificate in server.tls_cert"),
        (b"no key", "line 3: server.tls_cert: expected a certificate and its key in PEM"),
        (_with_passphrase(pair.key), "line 4: server.tls_key: found a key with a passphrase"),
        (pair.key.read_bytes(), ""),
    ):
        board.write(key, "a.key")
        found = board.configure(TLS)
        assert complaint in "".join(found)
        assert bool(found) == bool(complaint)
    board.write("no certificate", "ca.pem")
    assert "line 6: ota.ca: expected certificates in PEM" in "".join(board.configure(TLS))


def _with_passphrase(key: Path) -> bytes:
    command = ["openssl", "pkey", "-in", str(key), "-aes-128-cbc", "-passout", "pass:geheim"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_the_agent_knows_each_setting_that_is_written(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_certificate", lambda *arguments: [])
    monkeypatch.setattr(programs, "_authority", lambda *arguments: [])
    for name in ("a", "root.json"):
        board.write("{}", name)
    urls = '[ota]\nurl = ["https://a.example", "https://b.example"]\nwindow = "02:00-05:00"\nroot = "root.json"\n'
    files = 'ca = "a"\nclient_cert = "a"\nclient_key = "a"\n[network]\nproxy = "http://user:word@proxy:1"\n'
    assert board.configure(urls + files + '[host]\nname = "edge-1"\n') == []
    found = read_settings({}, {}, board.root / "etc/edge-ota/edge-ota.conf")
    assert (found.url, found.device, found.proxy) == (
        ("https://a.example", "https://b.example"), "edge-1", "http://user:word@proxy:1",
    )  # fmt: skip
    assert (found.ca_cert, found.client_key) == ("/etc/edge-ota/ca.pem", "/etc/edge-ota/client.key")
    assert found.system_window == "02:00-05:00"


@pytest.mark.slow
def test_the_program_of_the_package_checks_root_and_device(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "run", lambda self, *arguments: installed(*arguments))
    root = Repository().root()
    device = {"schema": 1, "device": "edge-1", "fleet": "plant", "ring": "prod"}
    unsigned = json.dumps(json.loads(root) | {"signatures": []}).encode()
    text = '[host]\nname = "edge-1"\n[ota]\nroot = "root.json"\ndevice = "device.json"\n'
    for data, document, complaints in (
        (b"{}", {}, ["line 5: ota.root: the file is not TUF root metadata", "line 6: ota.device: "]),
        (unsigned, device, ["line 5: ota.root: the file is not signed by the keys that it names"]),
        (root, device | {"device": "edge-2"}, ["the document of the device edge-1 is that of edge-2"]),
        (root, device | {"schema": 2}, ["has schema 2, and this edge-ota reads 1"]),
        (root, device, []),
    ):
        board.write(data, "root.json")
        board.write(json.dumps(document), "device.json")
        found = board.configure(text)
        assert len(found) == len(complaints), found
        assert all(complaint in one for complaint, one in zip(complaints, found, strict=True)), found


@pytest.mark.slow
def test_the_program_of_the_package_checks_settings(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "run", lambda self, *arguments: installed(*arguments))
    good = "[server.settings]\nEDGE_SERVE_HTTP_PORT = '22'\nEDGE_SERVE_LOG_VERBOSE = '1'\n"
    assert board.configure(good) == []
    assert [
        one[:90]
        for one in board.configure(good + "EDGE_SERVE_HANG_TIMEOUT_SECS = 'soon'\nEDGE_SERVE_LOG_VERBOS = '1'\n")
    ] == [
        'edge-serve.toml, line 5: server.settings: Bad environment variable "EDGE_SERVE_HANG_TIMEOU',
        "edge-serve.toml, line 6: server.settings: environment variable EDGE_SERVE_LOG_VERBOS is un",
    ]
