"""edge-serve.toml on the shipped image: a good one, one with a mistake, and the corrected one, each before a boot.

Nothing comes in through the firmware. The results are seen from outside: the server's status, the console, and the boot
partition. The tests are steps of one scenario, in the order of this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.disk import Disk
from tests.system.image import esp
from tests.system.image.esp import Esp
from tests.system.machine import Machine, wait_until
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
    ready = wait_until(lambda: device.status_of("GET", "/v2/health/ready") == 200, 60 * boot.patience, 0.5)
    assert ready, f"the device is not ready; its console:\n{boot.console()}"


def system(device: Service) -> dict[str, Any]:
    """Return the part of the status document about the device; {} while the console starts."""
    found = json.loads(device.ask("GET", "/edge-serve/status", headers={"Authorization": f"Bearer {TOKEN}"})[1])
    return found.get("system") or {}


def shown(device: Service, text: str) -> bool:
    """Wait until the console shows a text."""
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    return wait_until(lambda: text in boot.since_start(), 10 * boot.patience, 0.5)


def on_esp(device: Service) -> str:
    boot = device.machine.boot
    assert isinstance(boot, Disk)
    return Esp(boot.disk).read("edge-serve.toml").decode()


def test_settings_are_applied_at_the_first_boot_and_the_token_leaves_the_boot_partition(device: Service) -> None:
    boot_with(device, SETTINGS)
    assert wait_until(lambda: system(device).get("name") == "edge-7", 120, 1)
    assert shown(device, "edge-7 (edge-7.local)")
    found = system(device)
    assert (found["provisioned"], found["faults"], found["slot"]) == (True, [], "a")
    assert found["addresses"] == ["10.0.2.15"] or found["addresses"][0] == "10.0.2.15"
    assert wait_until(lambda: len(system(device)["fingerprint"]) == 64, 240, 2)
    assert device.infer() in (401, 403), "a request without the token"
    device.machine.boot.cut()
    assert TOKEN not in on_esp(device)
    assert 'hash = "sha256:' in on_esp(device)


def test_a_mistake_is_shown_and_the_settings_before_stay_in_force(device: Service) -> None:
    boot_with(device, on_esp(device).replace('name = "edge-7"', 'nam = "edge-8"'))
    fault = "edge-serve.toml, line 3: host: unknown key 'nam'; did you mean name?"
    assert wait_until(lambda: [one["text"] for one in system(device).get("faults", ())] == [fault], 120, 1)
    assert shown(device, fault)
    assert system(device)["name"] == "edge-7"
    device.machine.boot.cut()
    assert "nam = " in on_esp(device), "the file of the owner is not changed"


def test_the_corrected_settings_are_applied(device: Service) -> None:
    boot_with(device, on_esp(device).replace("nam = ", "name = "))
    assert wait_until(lambda: system(device).get("name") == "edge-8", 120, 1)
    assert system(device)["faults"] == []
    assert device.infer() in (401, 403), "the stored token is still required"
