"""A fleet updates the system of a booted device: the publisher and nginx on this host, real keys, the agent's own way.

By hand, with two images: --machine disk --image OLD.img.zst --update edge_N.build.json (make test-image-update).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ota.publish.publisher import PASSPHRASE
from tests.system.agent import KEPT
from tests.system.disk import Disk
from tests.system.image import esp, site
from tests.system.image.forged import forge
from tests.system.image.site import Clock, Site
from tests.system.machine import UNREACHABLE, Machine, wait_until
from tests.system.service import Service

AGENT = "/opt/edge-serve/bin/edge-ota"
#: of the fleet's publisher: edge-ota replaces no model that the device has from elsewhere
RELEASED = "adder"
_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/edge-system/socket")
    connection.sendall(sys.argv[1].encode() + b"\\n")
    print(connection.makefile().read())
"""


class Updated:
    """A device of a fleet that has a newer system."""

    def __init__(self, boot: Disk, owner: Site, update: Path, clock: Clock) -> None:
        self.boot, self.owner, self.clock = boot, owner, clock
        self.machine = Machine(boot)
        self.service = Service(self.machine)
        self.new = int(json.loads(update.read_text())["version"])
        self.files = [update.with_name(f"edge_{self.new}.{ending}") for ending in ("root", "verity", "efi")]
        self.old = 0

    def begin(self, command: str) -> None:
        """Run a command of the agent that restarts the machine; what it prints is in `said`."""
        text = f"{AGENT} {command} >{KEPT}/said 2>&1; sync"
        self.machine.run(f'mkdir -p {KEPT}; systemd-run --no-block --collect sh -c "{text}"')

    def said(self) -> str:
        return self.machine.run(f"cat {KEPT}/said || true")

    def status(self) -> dict[str, Any]:
        """Return the document of `edge-ota system status`; {} while the machine does not answer."""
        try:
            found: dict[str, Any] = json.loads(self.machine.run(f"{AGENT} system status --json", 60))
            record = json.loads(self.machine.run("cat /var/lib/edge-system/slots.json || echo '{}'"))
            return {**found, "record": record.get("confirmed", [])}
        except (*UNREACHABLE, AssertionError, ValueError):
            return {}

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 90) -> dict[str, Any]:
        """Return the first status that fulfils a condition."""
        found: dict[str, Any] = {}

        def fulfils() -> bool:
            nonlocal found
            found = self.status()
            return bool(found) and condition(found)

        assert wait_until(fulfils, seconds * self.boot.patience, 3), f"{found}\n{self.boot.console()}"
        return found

    def confirmed(self, version: int) -> dict[str, Any]:
        """Wait until a version runs and is good."""
        return self.wait_for(lambda found: found["version"] == version and version in found["record"])


@pytest.fixture(scope="module")
def device(image: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Updated]:
    """Yield a provisioned device whose first system is confirmed."""
    update: Path | None = request.config.getoption("--update")
    assert update is not None, "--update <edge_N.build.json> names the newer image: make test-image-update builds it"
    if why := site.why_not() or esp.why_not():
        pytest.skip(why)
    clock, boot = Clock(), Disk(image)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
            owner = Site(tmp_path_factory.mktemp("site"))
            owner.provision(boot.disk)
            found = Updated(boot, owner, update, clock)
            with owner.served():
                found.machine.start()
                # the runs of the timer would meet those of the test
                found.machine.run("systemctl stop edge-ota.timer edge-ota.service", 120)
                found.old = found.wait_for(lambda one: one["version"] in one["record"])["version"]
                clock.step(f"system {found.old} is confirmed")
                yield found
    finally:
        boot.stop()


def test_a_system_with_a_signature_of_another_key_is_refused_before_a_slot_is_touched(
    device: Updated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was taken over: its state directory has a repository of the forger, with the files of a real system."""
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    forged = forge(tmp_path / "forger", device.files, device.new)
    machine, state = device.machine, "/var/lib/edge-ota"
    slots = "ls -l /boot/EFI/Linux; cat /var/lib/edge-system/slots.json; partx -o NR,NAME /dev/vda"
    machine.run(f"[ ! -e {state}/metadata ] || mv {state}/metadata {state}/metadata.kept")
    for path in device.files:
        machine.put(f"{state}/system/{device.new}/{path.name}", path.read_bytes())
    for name, data in forged.files.items():
        machine.put(f"{state}/{name}", data)
    machine.run(f"chown -R edge-ota: {state}/metadata {state}/system")
    machine.put(f"{KEPT}/ask.py", _ASK.encode())
    before = machine.run(slots)
    request = json.dumps({"op": "install", "version": device.new})
    answer = json.loads(machine.run(f"python3 {KEPT}/ask.py '{request}'", 300))
    machine.run(f"rm -rf {state}/metadata {state}/system/*")
    machine.run(f"[ ! -e {state}/metadata.kept ] || mv {state}/metadata.kept {state}/metadata")
    print(answer)
    assert not answer["ok"]
    assert "was signed by 0/" in answer["error"]
    assert machine.run(slots) == before
    device.clock.step("a system of another key was refused")


def test_a_fleet_updates_the_system(device: Updated) -> None:
    device.owner.publisher.do("role", "system", "--preset", "small")
    device.owner.publisher.do("system", *device.files)
    device.owner.publisher.do("rollout start", "plant", "system", device.new, "prod=100")
    size = sum(one.stat().st_size for one in device.files)
    done = device.machine.run(f"{AGENT} check", 300)
    assert f"system: release {device.old} serves, {device.new} is wanted" in done

    device.clock.step(f"the update has {size} bytes")
    device.begin("system apply")
    device.confirmed(device.new)
    device.clock.step(f"system {device.new} is confirmed")

    print(device.said())
    assert device.service.status_of("GET", "/v2/health/ready") == 200
    assert f"system: release {device.new} serves" in device.machine.run(f"{AGENT} system apply", 300)
    history = device.machine.run(f"{AGENT} history")
    assert f"good        system {device.new}" in history
    assert device.machine.run("ls /var/lib/edge-ota/system").strip() == ""


def test_a_model_is_updated_after_that(device: Updated) -> None:
    device.owner.publish(RELEASED, 1)
    found = device.machine.run(f"{AGENT} apply --probation-seconds=0 --probation-requests=0 2>&1", 300)
    assert f"{RELEASED}: release 1" in found, found
    device.clock.step("a model was updated")


def test_an_unsigned_version_is_refused_before_a_slot_is_touched(device: Updated) -> None:
    forged = device.new + 1
    folder = f"/var/lib/edge-ota/system/{forged}"
    device.machine.put(f"{KEPT}/ask.py", _ASK.encode())
    device.machine.run(
        f"mkdir -p {folder} && for end in root verity efi json; do echo x >{folder}/edge_{forged}.$end; done"
    )
    before = device.machine.run("ls -l /boot/EFI/Linux; cat /var/lib/edge-system/slots.json")
    request = json.dumps({"op": "install", "version": forged})
    answer = json.loads(device.machine.run(f"python3 {KEPT}/ask.py '{request}'", 300))
    assert not answer["ok"]
    assert f"no system {forged} is signed for this device" in answer["error"]
    assert device.machine.run("ls -l /boot/EFI/Linux; cat /var/lib/edge-system/slots.json") == before
    device.clock.step("a forged version was refused")


def test_rollback_by_an_operator_boots_the_other_slot(device: Updated) -> None:
    device.begin("system rollback --why slow")
    found = device.wait_for(lambda one: one["version"] == device.old and str(device.new) in one["bad"])
    device.clock.step(f"system {device.old} runs again")
    assert "went back" in found["bad"][str(device.new)]
    said = device.machine.run(f"{AGENT} system apply 2>&1", 300)
    assert f"system {device.new} failed on this device" in said
    assert "slow" in device.machine.run(f"{AGENT} history")
