"""Network and time of edge-serve.toml, as a booted device has them in effect.

The device has no clock that runs without power. It asks this host for the time (10.0.2.2), once this host answers.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ota.publish.publisher import PASSPHRASE
from tests.system.disk import Disk, Hardware
from tests.system.fleet import DEVICE
from tests.system.image import esp, servers
from tests.system.image.esp import Esp
from tests.system.image.servers import Proxy
from tests.system.image.site import HOST, Site
from tests.system.machine import Machine, wait_until

#: the first one is where QEMU forwards ports to; DHCP would give no second one
ADDRESSES = ["10.0.2.15/24", "10.0.2.77/24"]
SETTINGS = f"""\
schema = 1
[host]
name = "{DEVICE}"
timezone = "Asia/Kolkata"
[network]
address = {json.dumps(ADDRESSES)}
gateway = "{HOST}"
dns = ["10.0.2.3"]
ntp = ["{HOST}"]
proxy = "http://{HOST}:{{proxy}}"
[ota]
url = ["http://models.example/plant"]
root = "root.json"
device = "device.json"
"""


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    with made.served():
        yield made


@pytest.fixture(scope="module")
def device(image: Path, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a device with fixed addresses whose clock began in 1970."""
    if why := esp.why_not():
        pytest.skip(why)
    boot = Disk(image, hardware=Hardware(clock="1970-01-01T00:00:00"))
    machine = Machine(boot)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
            Site(tmp_path_factory.mktemp("site")).provision(boot.disk)
        Esp(boot.disk).write("edge-serve.toml", SETTINGS.format(proxy=proxy.port).encode())
        machine.start()
        yield machine
    finally:
        boot.stop()


def faults(device: Machine) -> list[str]:
    """Return the codes of the faults."""
    lines = device.run("cat /run/edge-device/faults/*.json 2>/dev/null || true").splitlines()
    return sorted(json.loads(line)["code"] for line in lines)


def test_the_addresses_and_the_gateway_are_fixed(device: Machine) -> None:
    rows = json.loads(device.run("ip -json -4 address show scope global"))
    addresses = [one for row in rows for one in row.get("addr_info", ())]
    found = {f"{one['local']}/{one['prefixlen']}": one.get("dynamic", False) for one in addresses}
    assert found == dict.fromkeys(ADDRESSES, False), "none of them comes from DHCP"
    routes = json.loads(device.run("ip -json -4 route show default"))
    assert [one["gateway"] for one in routes] == [HOST]


def test_the_name_server_is_used(device: Machine) -> None:
    assert "10.0.2.3" in device.run("resolvectl dns")


def test_the_name_and_the_time_zone_are_in_effect(device: Machine) -> None:
    assert device.run("hostname") == f"{DEVICE}\n"
    assert device.run("date +%:z") == "+05:30\n"


def test_updates_are_asked_for_through_the_proxy(device: Machine, proxy: Proxy) -> None:
    device.try_run("/opt/edge-serve/bin/edge-ota check", 300)
    print(proxy.asked)
    assert any("http://models.example/plant/" in one for one in proxy.asked)


def test_a_clock_that_was_never_set_is_reported_until_the_time_server_answers(device: Machine) -> None:
    assert wait_until(lambda: "clock" in faults(device), 120, 1)
    behind = time.time() - float(device.run("date +%s"))
    with contextlib.ExitStack() as closing:
        try:
            closing.enter_context(servers.time_server())
        except OSError as error:
            pytest.skip(f"this host has a time server of its own: {error}")
        asked = "timedatectl timesync-status; journalctl -u systemd-timesyncd -n 30 --no-pager"
        assert wait_until(lambda: "clock" not in faults(device), 1200, 2), device.run(asked)
        off = time.time() - float(device.run("date +%s"))
    print(f"the clock was {behind:.0f} s behind, and is {off:.1f} s behind now")
    assert abs(off) < 60
