"""Mistakes in edge-serve.toml: each is reported with its line, and the configuration before stays in force."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from image.device import files
from image.device.provision.mistakes import Refused
from image.device.provision.read import parse
from tests.image.provision.board import MINIMAL, Board

GOOD = '[host]\nname = "edge-1"\n'
NETWORK = "run/systemd/network/50-edge-device.network"


def only(mistakes: list[str]) -> str:
    assert len(mistakes) == 1, mistakes
    return mistakes[0]


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ('[host]\nname = edge-1\n', 3, "Invalid value (column 8); expected lines such as"),
        ("[host\n", 2, "Expected ']' at the end of a table declaration"),
        ("[host]\nnam = 'x'\n", 3, "host: unknown key 'nam'; did you mean name?"),
        ("[hots]\n", 2, "unknown table 'hots'; did you mean host?"),
        ('timezone = "UTC"\n', 2, "unknown key 'timezone': it belongs into the table [host]"),
        ("host = 'edge-1'\n", 2, "host: found the text 'edge-1', expected a table: write [host]"),
        ("[host]\nname = 1\n", 3, 'host.name: found the number 1, expected text: write "1"'),
        (
            "[network]\nntp = 'a.example'\n", 3,
            "network.ntp: found the text 'a.example', expected a list of texts: write [\"a.example\"]",
        ),
        ("[network]\nntp = ['a.example',\n 5]\n", 4, 'network.ntp: found the number 5, expected text: write "5"'),
        ("[network]\nntp = [" + "'a', " * 9 + "]\n", 3, "network.ntp: found 9 entries, expected at most 8"),
        ("[host]\nname = 'Edge 1'\n", 3, "host.name: found 'Edge 1', expected up to 63 lower-case letters"),
        ("[host]\nname = '" + "a" * 64 + "'\n", 3, "host.name: found "),
        ("[host]\ntimezone = 'Europe/Berln'\n", 3, "host.timezone: found 'Europe/Berln', expected a time zone"),
        ("[host]\ntimezone = '../etc/passwd'\n", 3, "expected a time zone"),
        ("[host]\ntimezone = '" + "a" * 300 + "'\n", 3, "expected a time zone"),
        ("[network]\ninterface = '/dev/null'\n", 3, "expected names or patterns of interfaces"),
        ("[network]\naddress = 'static'\n", 3, "found the text 'static', expected \"dhcp\" or a list of texts"),
        ("[network]\naddress = ['192.168.1.20']\n", 3, "without a prefix, expected such as '192.168.1.20/24'"),
        ("[network]\naddress = ['127.0.0.1/8']\n", 3, "which no device can have"),
        ("[network]\naddress = ['10.0.0.2/24', '300.0.0.1/24']\n", 3, "found '300.0.0.1/24', expected an address"),
        ("[network]\naddress = []\n", 3, "found an empty list"),
        ("[network]\naddress = ['192.168.1.0/24']\n", 3, "which is the network or its broadcast address"),
        ("[network]\naddress = ['192.168.1.255/24']\n", 3, "expected an address within it"),
        ("[network]\naddress = ['fe80::20%eth0/64']\n", 3, "expected an address without '%' and an interface"),
        (
            "[network]\naddress = ['fd00::2/64']\ngateway = 'fe80::1%12'\n", 4,
            "network.gateway: found 'fe80::1%12', expected an address without '%'",
        ),
        ("[network]\naddress = ['fd00::2/64']\ndns = [\"fe80::1%x\\n[Route]\"]\n", 4, "network.dns: found 'fe80::1%x"),
        ("[network]\nntp = [\"fe80::1%x\\n[Route]\"]\n", 3, "expected a host name or an address"),
        (
            "[network]\naddress = ['10.0.0.2/24']\ngateway = '10.0.1.1'\n", 4,
            "expected an address within network.address (10.0.0.0/24)",
        ),
        (
            "[network]\naddress = ['10.0.0.2/24']\ngateway = '10.0.0.2'\n", 4,
            "found '10.0.0.2', which is the device's own address, expected that of your router",
        ),
        ("[network]\naddress = ['10.0.0.2/24']\ngateway = '10.0.0.255'\n", 4, "which no machine can have"),
        ("[network]\naddress = ['fd00::2/64']\ngateway = '10.0.0.1'\n", 4, "expected an address within"),
        ("[network]\naddress = ['10.0.0.2/24']\ndns = [\n'10.0.0.1', '0.0.0.0']\n", 5, "no other machine can have"),
        ("[network]\ngateway = '10.0.1.1'\n", 3, "network.gateway: expected only with fixed addresses"),
        ("[network]\ndns = ['1.1.1.1']\n", 3, "network.dns: expected only with fixed addresses"),
        ("[network]\nproxy = 'ftp://user:geheim@host'\n", 3, "proxy: found a text with '@' (in a password"),
        ("[network]\nntp = ['a b']\n", 3, "expected a host name or an address"),
        (
            "[ota]\nurl = ['https://a.example/#x']\n", 3,
            "ota.url: found another text, expected an address such as",
        ),
        ("[network]\nproxy = 'me:geheim@host:1'\n", 3, "expected http://host:port"),
        ("[network]\nproxy = 'http:/me:geheim@host:1'\n", 3, "expected http://host:port"),
        ("[network]\nproxy = 'http://me:geheim/x@host:1'\n", 3, "write / ? # @ as %2F %3F %23 %40"),
        ("[network]\nproxy = 'http://me:geheim'\n", 3, "proxy: found another text, expected http://host:port"),
        (
            "[ota]\nurl = 'https://me:geheim@a.example'\n", 3,
            "ota.url: found the text, expected a list of texts: write [\"...\"]",
        ),
        ("ota = 'https://me:geheim@a.example'\n", 2, "ota: found the text, expected a table: write [ota]"),
        ("[ota]\nroot = 'root.json'\n", 3, "ota.root: there is no file root.json on the boot partition: copy it"),
        ("[ota]\nroot = '../root.json'\n", 3, "expected the name of a file beside edge-serve.toml, or its text"),
        ("[ota]\nwindow = '2-5'\n", 3, "ota.window: found '2-5', expected hours such as '02:00-05:00'"),
        ("[ota]\nreplace_root = 'yes'\n", 3, "ota.replace_root: found the text 'yes', expected true or false"),
        ("[server]\ntls_cert = '-----BEGIN CERTIFICATE-----'\n", 3, "server.tls_cert: expected server.tls_key with it"),
        ("[server.settings]\nLOG = '1'\n", 3, "server.settings: found the name 'LOG', expected that of a variable"),
        (
            "[server.settings]\nEDGE_SERVE_LOG_VERBOSE = 1\n", 3,
            'server.settings.EDGE_SERVE_LOG_VERBOSE: found the number 1, expected text: write "1"',
        ),
        ("[server.settings]\nEDGE_SERVE_LOG_FILE = 'a\\nb'\n".replace("'", '"'), 3, "expected text on one line"),
        (
            "[[server.tokens]]\nname = 'a'\nrole = 'infer'\ntoken = 'kurz'\n", 5,
            "server.tokens: token: expected at least 32 characters",
        ),
        (
            "[[server.tokens]]\nname = 'a'\nrole = 'infr'\nhash = 'sha256:" + "0" * 64 + "'\n", 4,
            "role: expected one of health, read, infer, admin; did you mean infer?",
        ),
        (
            "[[server.tokens]]\nname = 'a'\nrole = '" + "geheim" * 6 + "'\nhash = 'sha256:" + "0" * 64 + "'\n", 4,
            "role: expected one of health, read, infer, admin",
        ),
        (
            "[[server.tokens]]\nname = 'a'\nrole = 'infer " + "geheim" * 6 + "'\nhash = 'sha256:" + "0" * 64 + "'\n", 4,
            "role: expected one of health, read, infer, admin",
        ),
        (
            f"[[server.tokens]]\n{'geheim' * 6} = 'infer'\nname = 'a'\nrole = 'read'\nhash = 'sha256:{'0' * 64}'\n", 2,
            "server.tokens: found another key; expected name, role, token, hash",
        ),
        ("[server]\ntokens = ['geheim']\n", 3, "server.tokens: found the text, expected table"),
        ("[server]\ntokens = 'geheim'\n", 3, "server.tokens: found the text, expected tables [[server.tokens]]"),
        ("[server.settings]\nEDGE_SERVE_A = 'geheim\t'\n", 3, "expected text on one line"),
        ("[[server.tokens]]\nname = 'a'\nrole = 'infer'\n", 2, "expected either token or hash"),
        ("[ssh]\nkeys = ['ssh-ed25519 AAAA']\n", 3, "ssh.keys: found a damaged key"),
        ("[ssh]\nkeys = ['command=\"x\" ssh-ed25519 AAAA']\n", 3, "options before the key are not allowed"),
        ("[ssh]\nkeys = ['-----BEGIN OPENSSH PRIVATE KEY-----']\n", 3, "found a private key"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line_and_nothing_is_applied(
    board: Board, text: str, line: int, complaint: str
) -> None:
    assert board.configure(GOOD) == []
    before = board.files()
    message = only(board.configure(text))
    assert message.startswith(f"edge-serve.toml, line {line}: ")
    assert complaint in message
    assert "kurz" not in message
    assert "geheim" not in message
    assert board.faults() == {"settings-1": message}
    after = {path: data for path, data in board.files().items() if "faults" not in path}
    assert after == before | {"boot/edge-serve.toml": (MINIMAL + text).encode()}
    assert board.configure(GOOD) == []
    assert board.faults() == {}


def test_all_mistakes_are_reported_at_once(board: Board) -> None:
    found = board.configure("[host]\nname = 'Edge'\ntimezone = 'Nowhere'\n[network]\nproxy = 'x'\n")
    assert [one.split(": ")[1] for one in found] == ["host.name", "host.timezone", "network.proxy"]
    board.configure("[host]\n" + "".join(f"key{number} = 1\n" for number in range(20)))
    assert board.faults()["settings-9"] == "12 more mistakes in edge-serve.toml"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "edge-serve.toml, line 1: schema is missing: write 'schema = 1' as the first line"),
        (
            b"schema = 2\n",
            "edge-serve.toml, line 1: schema: found 2, expected 1; "
            "the file is for a newer system: update this device first",
        ),
        (b"schema = true\n", "edge-serve.toml, line 1: schema: found True, expected 1"),
        (
            b"schema = 1\n" + b"#" * 10_000_000,
            "edge-serve.toml: found 10000011 bytes, expected a text file with at most 64 KiB; "
            "name certificates and keys as files",
        ),
        (
            b"schema = 1\n# f\xfcr\n",
            "edge-serve.toml, line 2: found the byte 0xfc, expected UTF-8: save the file as UTF-8",
        ),
        (
            "schema = 1\n".encode("utf-16"),
            "edge-serve.toml, line 1: found UTF-16, expected UTF-8: save the file as UTF-8",
        ),
        (
            bytes(512),
            "edge-serve.toml, line 1: Invalid statement (column 1); expected lines such as name = \"value\"; "
            "put quotes around text",
        ),
        (
            b"schema = 1\nx = " + b"[" * 5000,
            "edge-serve.toml: found lists or tables nested too deeply, expected a table of keys",
        ),
        (
            b"schema = 1\nx = " + b"[\n" * 5000,
            "edge-serve.toml: found lists or tables nested too deeply, expected a table of keys",
        ),
        (
            b"schema = 1\n" + b"a." * 20_000 + b"a = 1\n",
            "edge-serve.toml: found lists or tables nested too deeply, expected a table of keys",
        ),
        (
            b"schema" + b".a" * 99 + b" = " + b"[\n" * 20 + b"]" * 20,
            "edge-serve.toml: found lists or tables nested too deeply, expected a table of keys",
        ),
        pytest.param(
            b"schema = 1\n" + b'\\"' * 32_000,
            "edge-serve.toml, line 2: Invalid statement (column 1); expected lines such as name = \"value\"; "
            "put quotes around text",
            marks=pytest.mark.timeout(5),
        ),
        (
            b"schema = 1\n[host]\nname = \"edge",
            "edge-serve.toml, line 3: Unterminated string (end of the file); "
            "expected lines such as name = \"value\"; put quotes around text",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_settings_file_is_refused(board: Board, data: bytes, message: str) -> None:
    board.write(data)
    assert board.boot() == [message]
    assert board.text("var/lib/edge-device/name"), "the device has a name without settings"


@pytest.mark.parametrize(
    "text",
    [
        '"k\u2028it\'s"' + ".b" * 200 + ".'x' = 1\n",
        'x = ["""\nit\'s""", {a' + ".b" * 200 + " = 1, 'x' = 2}]\n",
        "x = ['''\n\"''', {a" + ".b" * 200 + ' = 1, "x" = 2}]\n',
    ],
)
def test_names_with_many_parts_are_found_before_the_text_is_parsed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("their parts would need much memory"))
    with pytest.raises(Refused, match="nested too deeply"):
        parse(text.encode())


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfschema = 1\n[host]\nname = 'edge-1'\n", b"schema = 1\r\n[host]\r\nname = 'edge-1'\r\n"]
)
def test_a_byte_order_mark_and_line_ends_of_windows_are_accepted(board: Board, data: bytes) -> None:
    board.write(data)
    assert board.boot() == []
    assert board.names[-1] == "edge-1"
    assert (board.esp / "edge-serve.toml").read_bytes() == data


def test_a_directory_in_place_of_the_file_is_refused(board: Board) -> None:
    (board.esp / "edge-serve.toml").mkdir()
    assert "found a directory, expected a text file" in only(board.boot())


def test_a_name_with_a_hidden_suffix_is_found(board: Board) -> None:
    board.write(MINIMAL, "edge-serve.toml.txt")
    assert only(board.boot()) == "edge-serve.toml: found edge-serve.toml.txt, expected edge-serve.toml: rename the file"


def test_a_boot_partition_that_is_not_mounted_leaves_the_settings_in_force(board: Board) -> None:
    assert board.configure(GOOD) == []
    board.mounted = False
    assert "the boot partition is not mounted" in only(board.boot())
    assert board.names[-1] == "edge-1"


def test_a_boot_partition_with_errors_leaves_the_settings_in_force(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert board.configure(GOOD) == []

    real = files.read

    def broken(path: Path, most: int) -> bytes:
        if path.parent == board.esp:
            raise OSError(5, "Input/output error")
        return real(path, most)

    monkeypatch.setattr("image.device.files.read", broken)
    assert "cannot be read: Input/output error; check the boot partition" in only(board.boot())
    assert board.names[-1] == "edge-1"


def test_a_removed_file_leaves_the_settings_in_force(board: Board) -> None:
    assert board.configure(GOOD) == []
    (board.esp / "edge-serve.toml").unlink()
    assert board.boot() == []
    assert board.names[-1] == "edge-1"


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("programs.check_all", OSError(28, "No space left on device", "/tmp/geheim")),
        ("secrets.redacted", KeyError("geheim")),
        ("schema.require_shape", MemoryError()),
    ],
)
def test_an_error_of_the_program_leaves_the_settings_in_force(
    board: Board, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: str, error: Exception
) -> None:
    assert board.configure(GOOD + "[network]\naddress = ['10.0.0.2/24']\n") == []
    (board.root / NETWORK).unlink()  # /run is empty after a restart

    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(f"image.device.provision.{place}", broken)
    message = only(board.configure("[host]\nname = 'edge-2'\n"))
    kind = "No space left on device" if isinstance(error, OSError) else type(error).__name__
    assert message == (
        f"edge-serve.toml: the settings could not be checked ({kind}); the journal has the place in the program"
    )
    assert "in broken" in capfd.readouterr().out
    assert "geheim" not in str(board.faults())
    assert board.names[-1] == "edge-1"
    assert "Address=10.0.0.2/24" in (board.text(NETWORK) or "")


@pytest.mark.parametrize("stored", ["damaged", "lost", "refused"])
def test_a_device_without_usable_settings_keeps_its_tokens_and_its_address(board: Board, stored: str) -> None:
    token = f"[[server.tokens]]\nname = 'a'\nrole = 'infer'\nhash = 'sha256:{'0' * 64}'\n"
    good = GOOD + "timezone = 'Europe/Berlin'\n[network]\naddress = ['10.0.0.2/24']\n" + token
    assert board.configure(good) == []
    before = board.files()
    if stored == "damaged":
        (board.state / "current/edge-serve.toml").write_bytes(b"schema = 1\n" + bytes(99))
    elif stored == "lost":
        (board.state / "current").unlink()
    else:  # by the checks of a newer system
        (board.zones / "Europe/Berlin").unlink()
    shutil.rmtree(board.root / "run")
    board.write(MINIMAL + good.replace("name", "nam", 1))
    assert board.boot() != []
    assert [code for code in board.faults() if not code.startswith("settings-1")] == ["settings-stored"]
    assert board.names[-1] == "edge-1"
    zone = "Etc/UTC" if stored == "refused" else "Europe/Berlin"
    assert os.readlink(board.root / "run/edge-device/localtime") == str(board.zones / zone)
    kept = [path for path in before if path.startswith(("etc/", "run/systemd/"))]
    assert "etc/edge-serve/tokens" in kept
    assert [path for path in kept if board.files().get(path) != before[path]] == []
    (board.zones / "Europe/Berlin").touch()
    assert board.configure(good) == []
    assert board.files()["etc/edge-serve/tokens"] == before["etc/edge-serve/tokens"]


def test_a_damaged_name_stops_nothing(board: Board) -> None:
    assert board.configure(GOOD) == []
    for name in ("name", "timezone", "network"):
        (board.state / name).write_bytes(bytes(9))
    assert board.boot() == []
    assert board.names[-1] == "edge-1"
    assert board.text(NETWORK) is None


def test_stored_settings_that_cannot_be_read_are_reported(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("geheim")

    assert board.configure(GOOD) == []
    monkeypatch.setattr("image.device.provision.store.load", broken)
    assert board.boot() == []
    assert board.names[-1] == "edge-1"
    assert "the stored settings cannot be read" in board.faults()["settings-stored"]


@pytest.mark.parametrize("damage", [b"", b"schema = 1\n", None])
def test_damaged_stored_settings_are_reported_and_written_anew(board: Board, damage: bytes | None) -> None:
    assert board.configure(GOOD) == []
    (stored,) = (board.state / "config").iterdir()
    if damage is None:
        (stored / "edge-serve.toml").unlink()
    else:
        (stored / "edge-serve.toml").write_bytes(damage)
    assert board.boot() == []
    assert board.faults() == {"settings-stored": "the stored settings cannot be read: they are damaged"}
    (board.esp / "edge-serve.toml").unlink()
    assert board.boot() == []
    assert board.names[-1] == "edge-1"
