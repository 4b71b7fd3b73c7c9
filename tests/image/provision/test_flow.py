"""What provisioning does with a good edge-serve.toml."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from image.device.files import FileStep
from image.device.provision.programs import Ended
from tests.image.provision.board import MINIMAL, Board

NETWORK = "run/systemd/network/50-edge-device.network"
SETTINGS = "etc/edge-serve/conf.d/50-device.conf"
TOKEN = "3f0123456789abcdef0123456789abcdef"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA93+4rk2w2hFhZ6n3MMH5OJtKqQ2VqDzHg8sD+0Vx0I someone"
PEM = "-----BEGIN PRIVATE KEY-----\ngeheim\n-----END PRIVATE KEY-----\n"
CERT = "-----BEGIN CERTIFICATE-----\nopen\n-----END CERTIFICATE-----\n"


@pytest.fixture(autouse=True)
def _certificates_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates here are no certificates; test_programs.py has real ones."""
    monkeypatch.setattr("image.device.provision.programs._certificate", lambda *arguments: [])


def without_head(text: str | None) -> str | None:
    """Return the text of a derived file without its first line."""
    assert text is None or text.startswith("# Written at each boot from edge-serve.toml")
    return text and text.partition("\n")[2]


def test_a_device_without_settings_gets_a_unique_name_and_utc(board: Board) -> None:
    assert board.boot() == []
    assert board.names == ["edge-" + hashlib.sha256(b"0123456789abcdef0123456789abcdef").hexdigest()[:6]]
    assert os.readlink(board.root / "run/edge-device/localtime") == str(board.zones / "Etc/UTC")
    assert board.text("var/lib/edge-device/name") == board.names[0] + "\n"
    assert board.text(NETWORK) is None
    assert not (board.state / "current").exists()
    assert board.commands == []


def test_a_start_without_a_file_imports_nothing_that_reads_one(board: Board) -> None:
    """An import takes long where the device is emulated, and its first boot has no file."""
    code = """
import sys
from pathlib import Path
from image.device.provision.flow import Place, provision
root = Path(sys.argv[1])
provision(Place(root, root / "boot", mounted=Path.is_dir, set_name=lambda name: None))
print(*(name for name in sys.modules if name.startswith("image.device.")))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, board.root],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {name.removeprefix("image.device.") for name in done.stdout.splitlines()[-1].split()}
    assert "provision.apply" in found
    assert found.isdisjoint({"provision.checks", "provision.texts", "provision.secrets", "facts", "slots"})


def test_name_time_zone_and_network_are_applied(board: Board) -> None:
    text = """
        [host]
        name = "edge-1"
        timezone = "Europe/Berlin"
        [network]
        interface = "eth0"
        address = ["192.168.1.20/24", "fd00::20/64"]
        gateway = "192.168.1.1"
        dns = ["192.168.1.1"]
        ntp = ["ntp.example"]
        """
    assert board.configure(text) == []
    assert board.names == ["edge-1"]
    assert os.readlink(board.root / "run/edge-device/localtime") == str(board.zones / "Europe/Berlin")
    assert (board.text(NETWORK) or "").splitlines()[1:] == [
        "[Match]", "Name=eth0", "[Link]", "RequiredForOnline=no",
        "[Network]", "MulticastDNS=yes", "LLMNR=no", "KeepConfiguration=dynamic-on-stop",
        "Address=192.168.1.20/24", "Address=fd00::20/64", "Gateway=192.168.1.1", "DNS=192.168.1.1", "NTP=ntp.example",
        "[DHCPv4]", "UseHostname=no", "UseTimezone=no",
    ]  # fmt: skip


def test_a_server_on_the_link_may_name_its_interface(board: Board) -> None:
    assert board.configure('[network]\naddress = ["fd00::2/64"]\ndns = ["fe80::1%eth0"]\n') == []
    assert "DNS=fe80::1%eth0\n" in (board.text(NETWORK) or "")


def test_an_interface_whose_name_has_the_domain_of_its_bus_is_accepted(board: Board) -> None:
    assert board.configure('[network]\ninterface = "enP4p65s0"\n') == []
    assert "Name=enP4p65s0\n" in (board.text(NETWORK) or "")


@pytest.mark.parametrize(
    ("address", "gateway"), [("10.0.0.2/31", "10.0.0.3"), ("10.0.0.2/24", "10.0.0.1"), ("fd00::2/64", "fe80::1")]
)
def test_a_gateway_within_reach_is_accepted(board: Board, address: str, gateway: str) -> None:
    assert board.configure(f'[network]\naddress = ["{address}"]\ngateway = "{gateway}"\n') == []


def test_updates_are_set_up_and_their_units_started(board: Board) -> None:
    board.write('{"signed": 1}', "root.json")
    board.write('{"device": "edge-7"}', "device.json")
    text = '[ota]\nurl = ["https://a.example/x", "https://b.example"]\nroot = "root.json"\ndevice = "device.json"\n'
    assert board.configure(text + '[network]\nproxy = "http://proxy:3128"\n') == []
    assert (board.text("etc/edge-ota/edge-ota.conf") or "").splitlines()[1:] == [
        "URL=https://a.example/x https://b.example", "DEVICE=edge-7", "PROXY=http://proxy:3128",
    ]  # fmt: skip
    assert board.text("etc/edge-ota/root.json") == '{"signed": 1}'
    assert board.text("etc/edge-ota/device.json") == '{"device": "edge-7"}'
    assert board.names == ["edge-7"]
    check, start = board.commands
    assert check[1] == "run-check-device"
    assert start[:3] == ["systemctl", "start", "--no-block"]
    board.boot()
    assert len(board.commands) == 2, "a boot without changes calls no program"


def test_tokens_tls_and_settings_of_the_server_are_applied_and_leave_the_boot_partition(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.write("certificate", "server.crt")
    board.write(PEM, "server.key")
    text = f"""\
[server]
tls_cert = "server.crt"
tls_key = "server.key" # from our CA
settings = {{ EDGE_SERVE_LOG_VERBOSE = '1', EDGE_SERVE_X = 'a "b" $HOME \\ c' }}
[[server.tokens]]
name = "camera-3" # comment
role = "infer"
token = "{TOKEN}"
"""
    assert board.configure(text) == []
    assert without_head(board.text("etc/edge-serve/tokens")) == f"infer sha256:{HASH} camera-3\n"
    assert board.text("etc/edge-serve/credentials/server.key") == PEM
    lines = (board.text(SETTINGS) or "").splitlines()[1:]
    assert "EDGE_SERVE_HTTP_SERVER_KEY=/run/credentials/edge-serve.service/edge-serve_server.key" in lines
    assert "EDGE_SERVE_TOKEN_FILE=/etc/edge-serve/tokens" in lines
    assert 'EDGE_SERVE_X="a \\"b\\" \\$HOME \\\\ c"' in lines
    on_esp = board.files("boot")
    assert sorted(on_esp) == ["edge-serve.toml", "server.crt"]
    assert on_esp["edge-serve.toml"].decode() == MINIMAL + text.replace(f'token = "{TOKEN}"', f'hash = "sha256:{HASH}"')
    assert all(TOKEN.encode() not in data for data in board.files().values())
    steps: list[FileStep] = []
    monkeypatch.setattr("image.device.files.point", steps.append)
    assert board.boot() == []
    assert steps
    assert [one for one in steps if f"{board.root}/run/" not in one.path + "/"] == [], "only memory is written"


def test_tokens_that_were_made_on_the_device_stay_until_the_file_has_some(board: Board) -> None:
    assert board.boot() == []
    tokens = board.root / "etc/edge-serve/tokens"
    assert tokens.read_text() == ""
    tokens.write_text("infer sha256:0 camera-3\n")
    assert board.boot() == []
    assert tokens.read_text() == "infer sha256:0 camera-3\n"
    assert board.configure(f'[[server.tokens]]\nname = "a"\nrole = "infer"\ntoken = "{TOKEN}"\n') == []
    assert without_head(tokens.read_text()) == f"infer sha256:{HASH} a\n"
    assert board.configure("") == []
    assert tokens.read_text() == ""


def test_secrets_in_the_text_itself_are_replaced_by_a_mark_that_stays_valid(board: Board) -> None:
    text = f'[ota]\nurl = ["https://me:pass@a.example/x"]\nclient_cert = """{CERT}"""\nclient_key = """{PEM}"""\n'
    assert board.configure(text + '[network]\nproxy = "http://me:word@proxy:1"\n') == []
    kept = (board.text("boot/edge-serve.toml") or "").replace(f'client_cert = """{CERT}"""', "")
    assert "geheim" not in kept
    assert "pass" not in kept
    assert 'url = ["https://(stored)@a.example/x"]' in kept
    assert 'client_key = "(stored)"' in kept
    board.write((board.text("boot/edge-serve.toml") or "").replace("[ota]", '[host]\nname = "other"\n[ota]'))
    assert board.boot() == []
    assert board.names[-1] == "other"
    agent = board.text("etc/edge-ota/edge-ota.conf") or ""
    assert "URL=https://me:pass@a.example/x" in agent
    assert "PROXY=http://me:word@proxy:1" in agent
    assert (board.root / "etc/edge-ota/edge-ota.conf").stat().st_mode & 0o077 == 0
    assert board.text("etc/edge-ota/client.key") == PEM


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ca = 'both.pem'", "remove it"),
        ("client_cert = 'both.pem'\nclient_key = 'key.pem'", "remove it, or name one file in both ota.client_cert and"),
        (f"client_cert = '''{CERT + PEM}'''\nclient_key = '''{CERT + PEM}'''", "remove it, or name one file in both"),
    ],
)
def test_a_private_key_that_would_stay_on_the_boot_partition_is_refused(board: Board, line: str, hint: str) -> None:
    board.write(CERT + PEM, "both.pem")
    board.write(PEM, "key.pem")
    (mistake,) = board.configure(f"[ota]\n{line}\n")
    assert mistake.startswith("edge-serve.toml, line 3: ota.c")
    assert f": found a private key, expected none here; {hint}" in mistake
    assert not (board.root / "etc/edge-ota/ca.pem").exists()


def test_a_name_that_is_quoted_and_escaped_is_a_name(board: Board) -> None:
    text = f"""\
[server]
tls_cert = "-----BEGIN"
"tls_k\\u0065y" = "{PEM[:-1]}"
[[server."t\\U0000006fkens"]]
name = "a"
role = "infer"
"tok\\u0065n" = "{TOKEN}"
""".replace("\ngeheim\n", "geheim")
    assert board.configure(text) == []
    on_esp = board.text("boot/edge-serve.toml") or ""
    assert TOKEN not in on_esp
    assert "geheim" not in on_esp
    assert '"tls_k\\u0065y" = "(stored)"' in on_esp
    assert board.boot() == []
    assert "geheim" in (board.text("etc/edge-serve/credentials/server.key") or "")
    assert without_head(board.text("etc/edge-serve/tokens")) == f"infer sha256:{HASH} a\n"


def test_secrets_stay_if_the_data_partition_does_not_keep_them(board: Board) -> None:
    board.lasting = False
    text = f'[[server.tokens]]\nname = "a"\nrole = "infer"\ntoken = "{TOKEN}"\n'
    assert board.configure(text) == []
    assert board.text("boot/edge-serve.toml") == MINIMAL + text
    assert without_head(board.text("etc/edge-serve/tokens")) == f"infer sha256:{HASH} a\n"
    board.lasting = True
    assert board.boot() == []
    assert TOKEN not in (board.text("boot/edge-serve.toml") or TOKEN)


def test_a_full_data_partition_applies_the_settings_and_says_so(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("image.device.provision.store.save", full)
    assert board.configure('[host]\nname = "edge-1"\n') == []
    assert board.names == ["edge-1"]
    assert "cannot be stored (No space left on device)" in board.faults()["settings-not-stored"]


def test_a_changed_certificate_beside_the_same_text_is_applied(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.write("old", "ca.pem")
    board.write("{}", "root.json")
    monkeypatch.setattr("image.device.provision.programs._authority", lambda *arguments: [])
    assert board.configure('[ota]\nca = "ca.pem"\nroot = "root.json"\n') == []
    board.write("new", "ca.pem")
    assert board.boot() == []
    assert board.text("etc/edge-ota/ca.pem") == "new"
    assert len(list((board.state / "config").iterdir())) == 1


def test_another_root_of_trust_is_refused_until_it_is_asked_for(board: Board) -> None:
    text = '[ota]\nroot = "root.json"\n'
    board.write("first", "root.json")
    assert board.configure(text) == []
    board.write("second", "root.json")
    assert board.boot() == [
        "edge-serve.toml, line 3: ota.root: the device trusts another root.json, and this one would let others update "
        "it; if you mean it, add ota.replace_root = true, and remove that line afterwards"
    ]
    assert board.text("etc/edge-ota/root.json") == "first"
    assert board.configure(text + "replace_root = true\n") == []
    assert board.text("etc/edge-ota/root.json") == "second"


def test_the_same_root_of_trust_in_other_bytes_is_accepted(board: Board) -> None:
    text = '[ota]\nroot = "root.json"\n'
    board.write('{"signed": {"version": 1}}', "root.json")
    assert board.configure(text) == []
    board.write('{\n  "signed": {"version": 1}\n}\n', "root.json")
    assert board.boot() == []
    board.write('{"signed": {"version": 2}}', "root.json")
    assert len(board.boot()) == 1


def test_the_host_key_of_ssh_is_made_once_and_only_with_keys(board: Board) -> None:
    ssh = board.state / "ssh"
    board.boot()
    assert not ssh.exists()
    assert board.configure(f'[ssh]\nkeys = ["{KEY}"]\n') == []
    assert (ssh / "authorized_keys").read_text() == KEY + "\n"
    assert (ssh / "ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    board.boot()
    assert [one[0] for one in board.commands] == ["ssh-keygen"]
    board.configure("")
    assert sorted(one.name for one in ssh.iterdir()) == ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"]


def test_mistakes_that_programs_find_are_reported_with_the_line_of_their_key(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "run-check-device": "root: R is not TUF root metadata\ndevice: D is that of edge-9",
        "check-config": "warning: x\nproblem: EDGE_SERVE_B is unknown\nproblem: --hang-timeout-secs must not be 0",
    }

    def run(self: Board, command: list[str], environ: object) -> Ended:
        return Ended(1, answers[command[1]])

    monkeypatch.setattr(Board, "run", run)
    board.write("{}", "root.json")
    board.write("{}", "device.json")
    settings = "[server.settings]\nEDGE_SERVE_HANG_TIMEOUT_SECS = '0'\nEDGE_SERVE_B = '1'\n"
    assert board.configure("[ota]\nroot = 'root.json'\ndevice = 'device.json'\n" + settings) == [
        "edge-serve.toml, line 3: ota.root: R is not TUF root metadata",
        "edge-serve.toml, line 4: ota.device: D is that of edge-9",
        "edge-serve.toml, line 6: server.settings: --hang-timeout-secs must not be 0",
        "edge-serve.toml, line 7: server.settings: EDGE_SERVE_B is unknown",
    ]


def test_a_program_that_hangs_or_is_missing_refuses_the_settings(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "run", lambda *arguments: Ended(124, "did not end"))
    board.write("{}", "root.json")
    text = "[ota]\nroot = 'root.json'\n[server.settings]\nEDGE_SERVE_B = '1'\n"
    assert [one.split(": ")[1:3] for one in board.configure(text)] == [
        ["ota", "the check of the documents failed"],
        ["server.settings", "'edge-serve check-config' failed"],
    ]
