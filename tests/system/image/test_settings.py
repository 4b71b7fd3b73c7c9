"""edge-serve.toml on the shipped image: a good one, one with a mistake, and the corrected one, each before a boot.

Nothing comes in through the firmware. The results are seen from outside: the server's status, the console, and the boot
partition. The tests are steps of one scenario, in the order of this file.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.system.disk import Disk
from tests.system.image import esp
from tests.system.image.esp import Esp
from tests.system.machine import UNREACHABLE, Machine, wait_until
from tests.system.service import Service

TOKEN = "3f0123456789abcdef0123456789abcdef"
SETTINGS = f"""\
schema = 1
[host]
name = "edge-7"
[network]
address = "dhcp"
[[server.tokens]]
name = "camera"
role = "infer"
token = "{TOKEN}"
[server.settings]
EDGE_SERVE_LOG_VERBOSE = "1"
"""
LOGIN = {"Authorization": f"Bearer {TOKEN}"}
SSH = 22
NEW_TOKEN = "9f0123456789abcdef0123456789abcdef"
FULL = "full.bin"
_ROW = {"datatype": "INT32", "shape": [1, 16], "data": [list(range(16))]}
INPUTS = {"inputs": [{"name": "INPUT0", **_ROW}, {"name": "INPUT1", **_ROW}]}


class Administrator:
    """The owner of a key of SSH, on this host.

    Attributes:
        public: the line of the .pub file
        host_key: of the device, when it was seen first
    """

    def __init__(self, folder: Path) -> None:
        self._key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "admin", "-f", self._key], check=True)
        self.public = self._key.with_suffix(".pub").read_text().strip()
        self.host_key = ""

    def log_in(self, device: Service, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `hostname` on the device. Options come before the usual ones, and so win."""
        host, port = device.machine.boot.address(SSH)
        usual = (
            "BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR",
            "IdentitiesOnly=yes", "ConnectTimeout=120",
        )  # fmt: skip
        words = [word for option in (*options, *usual) for word in ("-o", option)]
        command = ["ssh", "-F", "/dev/null", "-p", str(port), "-i", str(self._key), *words, f"root@{host}", "hostname"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)

    def scan(self, device: Service) -> str:
        """Return the device's host key."""
        host, port = device.machine.boot.address(SSH)
        command = ["ssh-keyscan", "-T", "120", "-t", "ed25519", "-p", str(port), host]
        found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
        return found.split()[-1]


def answers_ssh(device: Service) -> bool:
    """Return whether a server of SSH greets. QEMU accepts connections in the place of the device."""
    try:
        with socket.create_connection(device.machine.boot.address(SSH), 60) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@pytest.fixture(scope="module")
def administrator(tmp_path_factory: pytest.TempPathFactory) -> Administrator:
    """Return the owner of the key that the device gets."""
    if not (shutil.which("ssh-keyscan") and shutil.which("ssh")):
        pytest.skip("ssh is not installed: apt-get install openssh-client")
    return Administrator(tmp_path_factory.mktemp("ssh"))


@pytest.fixture(scope="module")
def device(image: Any) -> Iterator[Service]:
    """Yield a device that was flashed and not switched on yet."""
    if why := esp.why_not():
        pytest.skip(why)
    boot = Disk(image, shipped=True)
    try:
        yield Service(Machine(boot))
    finally:
        boot.stop()


def boot_with(device: Service, text: str) -> None:
    """Cut the power, write edge-serve.toml, and boot until the server is ready."""
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    boot.cut()
    Esp(boot.disk).write("edge-serve.toml", text.encode())
    boot.start()
    assert wait_until(lambda: is_ready(device), 60 * boot.patience, 0.5), boot.console()


def is_ready(device: Service) -> bool:
    """Return whether the server is ready. It asks for a token where some are configured."""
    with suppress(*UNREACHABLE):
        return device.ask("GET", "/v2/health/ready", headers=LOGIN)[0] == 200
    return False


def system(device: Service) -> dict[str, Any]:
    """Return the part of the status document about the device; {} while the console starts.

    The fault of the power cut before the boot, by the test, is left out.
    """
    found = json.loads(device.ask("GET", "/edge-serve/status", headers=LOGIN)[1]).get("system") or {}
    if found:
        found["faults"] = [one for one in found["faults"] if one["code"] != "unclean-restart"]
    return found


def shown(device: Service, text: str) -> bool:
    """Wait until the console shows a text."""
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    return wait_until(lambda: text in boot.since_start(), 10 * boot.patience, 0.5)


def on_esp(device: Service) -> str:
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    return Esp(boot.disk).read("edge-serve.toml").decode()


def test_settings_are_applied_at_the_first_boot(device: Service, administrator: Administrator) -> None:
    boot_with(device, f'{SETTINGS}[ssh]\nkeys = ["{administrator.public}"]\n')
    assert wait_until(lambda: system(device).get("name") == "edge-7", 120, 1)
    assert shown(device, "edge-7 (edge-7.local)")
    found = system(device)
    assert (found["provisioned"], found["faults"], found["slot"]) == (True, [], "a")
    assert found["addresses"] == ["10.0.2.15"] or found["addresses"][0] == "10.0.2.15"
    assert wait_until(lambda: len(system(device)["fingerprint"]) == 64, 240, 2)
    assert device.infer() in (401, 403), "a request without the token"


def test_ssh_admits_the_key_and_no_password(device: Service, administrator: Administrator) -> None:
    assert wait_until(lambda: answers_ssh(device), 240, 1)
    done = administrator.log_in(device)
    assert (done.returncode, done.stdout) == (0, "edge-7\n"), done.stderr
    without = administrator.log_in(device, "PubkeyAuthentication=no")
    assert without.returncode == 255
    assert "Permission denied (publickey)" in without.stderr, "the server offers no password"
    administrator.host_key = administrator.scan(device)


def test_the_token_has_left_the_boot_partition(device: Service) -> None:
    device.machine.boot.cut()
    assert TOKEN not in on_esp(device)
    assert 'hash = "sha256:' in on_esp(device)


def test_a_mistake_is_shown_and_the_settings_before_stay_in_force(
    device: Service, administrator: Administrator
) -> None:
    boot_with(device, on_esp(device).replace('name = "edge-7"', 'nam = "edge-8"'))
    fault = "edge-serve.toml, line 3: host: unknown key 'nam'; did you mean name?"
    assert wait_until(lambda: [one["text"] for one in system(device).get("faults", ())] == [fault], 120, 1)
    assert shown(device, fault)
    assert system(device)["name"] == "edge-7"
    assert wait_until(lambda: answers_ssh(device), 240, 1)
    assert administrator.scan(device) == administrator.host_key, "it stays across restarts"
    assert administrator.log_in(device).stdout == "edge-7\n"
    device.machine.boot.cut()
    assert "nam = " in on_esp(device), "the file of the owner is not changed"


def test_the_corrected_settings_are_applied(device: Service) -> None:
    boot_with(device, on_esp(device).replace("nam = ", "name = ").partition("[ssh]")[0])
    assert wait_until(lambda: system(device).get("name") == "edge-8", 120, 1)
    assert system(device)["faults"] == []
    assert device.infer() in (401, 403), "the stored token is still required"
    assert not answers_ssh(device), "without keys there is no server of SSH"


def test_settings_are_applied_while_the_boot_partition_is_full(device: Service) -> None:
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    boot.cut()
    row = f'[[server.tokens]]\nname = "other"\nrole = "read"\ntoken = "{NEW_TOKEN}"\n'
    text = (
        on_esp(device)
        .replace('name = "edge-8"', 'name = "edge-9"')
        .replace("[server.settings]", f"{row}[server.settings]")
    )
    Esp(boot.disk).write("edge-serve.toml", text.encode())
    Esp(boot.disk).fill(FULL)
    boot_with(device, text)
    assert wait_until(lambda: system(device).get("name") == "edge-9", 120, 1)
    assert device.ask("POST", "/v2/models/simple/infer", INPUTS, headers=LOGIN)[0] == 200
    assert device.ask("GET", "/v2", headers={"Authorization": f"Bearer {NEW_TOKEN}"})[0] == 200
    codes = {one["code"] for one in system(device)["faults"]}
    print(system(device)["faults"])
    assert "settings-secrets" in codes
    assert codes <= {"settings-secrets", "boot-partition"}
    boot.cut()
    assert NEW_TOKEN in on_esp(device), "the new text does not fit beside the old one"


def test_the_secret_leaves_the_boot_partition_when_it_has_space(device: Service) -> None:
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    Esp(boot.disk).remove(FULL)
    boot_with(device, on_esp(device))
    assert wait_until(lambda: system(device).get("faults") == [], 120, 1), system(device)
    boot.cut()
    assert NEW_TOKEN not in on_esp(device)
