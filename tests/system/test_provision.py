"""edge-serve.toml on a booted machine: the units of the device image, in their sandboxes, with the package's programs.

The tests are steps of one scenario, in the order of this file. /boot is a file system in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.program import CHECKOUT
from tests.ota.simulator import Repository
from tests.system.machine import wait_until
from tests.system.service import Service

UNITS = ("edge-provision", "edge-console", "edge-identity")
DEVICE = "/usr/lib/edge-device"
TOKEN = "3f0123456789abcdef0123456789abcdef"
SETTINGS = f"""\
schema = 1
[host]
name = "edge-7"
timezone = "Europe/Berlin"
[ota]
url = ["http://127.0.0.1:9"]
root = "root.json"
device = "device.json"
[[server.tokens]]
name = "camera"
role = "infer"
token = "{TOKEN}"
[server.settings]
EDGE_SERVE_LOG_VERBOSE = "1"
"""


@pytest.fixture(scope="module")
def device(installed: Service) -> Iterator[Service]:
    """Yield the machine with the units of the image and a boot partition, and remove them at the end."""
    machine = installed.machine
    installed.clean()
    installed.add_shipped_models("simple")
    name = machine.run("hostname").strip()
    machine.put_folder(CHECKOUT / "image/device", f"{DEVICE}/image/device")
    machine.put(f"{DEVICE}/image/__init__.py", b"")
    extra = CHECKOUT / "image/mkosi/mkosi.extra/usr/lib"
    machine.put(f"{DEVICE}/edge-device", (extra / "edge-device/edge-device").read_bytes())
    for unit in UNITS:
        text = (extra / f"systemd/system/{unit}.service").read_bytes()
        machine.put(f"/run/systemd/system/{unit}.service", text)
    machine.run(f"mkdir -p /var/lib/edge-device; chmod 755 {DEVICE}/edge-device; mount -t tmpfs tmpfs /boot")
    machine.run("systemctl daemon-reload")
    machine.put(
        "/run/edge-device/data.json", json.dumps({"lasting": True, "reason": ""}).encode()
    )  # as the initrd does
    machine.put("/boot/root.json", Repository().root())
    document = {"schema": 1, "device": "edge-7", "fleet": "plant", "ring": "prod"}
    machine.put("/boot/device.json", json.dumps(document).encode())
    yield installed
    machine.run(
        f"systemctl stop {' '.join(UNITS)} edge-ota.timer edge-ota-trial.socket edge-ota-build.socket; umount /boot;"
        " rm -rf /run/systemd/system/edge-provision.service /run/systemd/system/edge-console.service"
        f" /run/systemd/system/edge-identity.service {DEVICE} /var/lib/edge-device /run/edge-device"
        " /etc/edge-ota/*.json /etc/edge-ota/edge-ota.conf /var/lib/edge-ota/identity; systemctl daemon-reload;"
        f" hostname {name}"
    )
    installed.clean()


def start(device: Service, text: str) -> None:
    """Apply a text as a restart of the device would."""
    device.machine.put("/boot/edge-serve.toml", text.encode())
    device.machine.run("systemctl restart edge-provision", 120)


def system(device: Service) -> dict[str, Any]:
    """Return the part of the status document about the device."""
    found: dict[str, Any] = json.loads(device.machine.run("edge-serve status --json"))["system"]
    return found


def test_settings_are_checked_by_the_programs_of_the_package_and_applied(device: Service) -> None:
    start(device, SETTINGS)
    machine = device.machine
    log = machine.run("journalctl -u edge-provision --no-pager -o cat")
    assert machine.run("hostname") == "edge-7\n", log
    assert machine.run("stat -c '%U:%G %a' /etc/edge-serve/tokens") == "root:edge-serve 640\n"
    assert TOKEN not in machine.run("cat /boot/edge-serve.toml; grep -rs . /etc/edge-serve /var/lib/edge-device; true")
    assert "sha256:" in machine.run("cat /boot/edge-serve.toml")
    assert machine.run("edge-serve check-config").startswith("good")
    assert "DEVICE=edge-7" in machine.run("cat /etc/edge-ota/edge-ota.conf")
    assert machine.run("systemctl is-active edge-ota.timer") == "active\n"
    device.start()
    assert device.infer() in (401, 403)
    row = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [list(range(16))]}
    body = {"inputs": [row, row | {"name": "INPUT1"}]}
    login = {"Authorization": f"Bearer {TOKEN}"}
    assert device.ask("POST", "/v2/models/simple/infer", body, headers=login)[0] == 200


def test_the_console_writes_the_status_that_the_server_shows(device: Service) -> None:
    device.machine.run("systemctl start edge-console")
    assert wait_until(lambda: device.machine.try_run("test -e /run/edge-device/status.json").status == 0, 20)
    shown = system(device)
    assert (shown["name"], shown["provisioned"], shown["faults"]) == ("edge-7", True, [])
    device.machine.run("systemctl start edge-identity", 60)
    assert wait_until(lambda: len(system(device)["fingerprint"]) == 64, 20)
    assert system(device)["fingerprint"] in device.machine.run("edge-ota identity")


def test_a_mistake_is_shown_and_the_settings_before_stay_in_force(device: Service) -> None:
    kept = device.machine.run("cat /boot/edge-serve.toml")
    start(device, kept.replace("name = ", "nam = ", 1) + "EDGE_SERVE_LOG_VERBOS = '1'\n")
    fault = "edge-serve.toml, line 3: host: unknown key 'nam'; did you mean name?"
    assert wait_until(lambda: [one["text"] for one in system(device)["faults"]] == [fault], 20)
    assert fault in device.machine.run("journalctl -u edge-provision --no-pager -o cat; edge-serve status")
    assert device.machine.run("hostname") == "edge-7\n"
    start(device, kept + "EDGE_SERVE_LOG_VERBOS = '1'\n")
    assert wait_until(lambda: "EDGE_SERVE_LOG_VERBOS is unknown" in system(device)["faults"][0]["text"], 20)
    start(device, kept)
    assert wait_until(lambda: system(device)["faults"] == [], 20)
