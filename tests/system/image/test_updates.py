"""Updates of the system on the booted image: good ones, bad ones, and damaged disks (`make test-image-update`).

The trust of TUF is tested elsewhere (tests/ota/system): a stand-in for `edge-ota verify-system` says what the test's
files are. Everything below it is the image as it ships.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent import KEPT
from tests.system.disk import Disk
from tests.system.image import busy
from tests.system.image.esp import before_superblock, flip, partitions
from tests.system.machine import UNREACHABLE, Machine, wait_until
from tests.system.service import Service

#: a unit of the test in each boot: it spoils the new system, as the test wants it
_SPOILER = f"""\
[Unit]
DefaultDependencies=no
RequiresMountsFor=/var
Before=edge-serve.service edge-health.service
[Service]
Type=oneshot
ExecStart=-/bin/sh {KEPT}/spoil
"""
NEVER_READY = """\
mkdir -p /run/systemd/system/edge-serve.service.d
printf '[Service]\\nExecStart=\\nExecStart=/bin/false\\n' >/run/systemd/system/edge-serve.service.d/spoil.conf
systemctl daemon-reload
"""
PANIC = "echo c >/proc/sysrq-trigger\n"
#: systemd stands still, and feeds the watchdog no longer
HANG = "echo 1 >/sys/fs/cgroup/init.scope/cgroup.freeze\n"
#: the kernel disarms the watchdog when a crashed systemd closes it, so systemd must restart the machine itself
CRASH = "kill -SEGV 1\n"

_STATE = """
import json, sys
sys.path.insert(0, "/usr/lib/edge-device")
from image.device import decide
from image.device.slots import SlotStore
store = SlotStore()
running, slots = store.running(), store.load()
entries = [{"version": one.version, "state": decide.state_of(one, slots), "left": one.left} for one in store.entries()]
print(json.dumps({
    "version": running, "confirmed": running in slots.confirmed, "entries": entries, "bad": dict(slots.bad),
    "pending": slots.pending, "previous": slots.previous,
}))
"""
_ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/edge-system/socket")
    connection.sendall(open(sys.argv[1], "rb").read() + b"\\n")
    print(connection.makefile().read())
"""
_WITHOUT_RESTART = """
import sys
sys.path.insert(0, "/usr/lib/edge-device")
from image.device.install import Installer
from image.device.server import ask
from image.device.slots import SlotStore
Installer(SlotStore(), ask).install(int(sys.argv[1]))
"""


def document(update: Path) -> dict[str, Any]:
    """Return what `edge-ota verify-system` would print for an update that `python -m image build` wrote."""
    built = json.loads(update.read_text())
    files = {
        "uki" if kind == "efi" else kind: {"path": one["name"], "sha256": one["sha256"], "bytes": one["length"]}
        for kind, one in built["files"].items()
    }
    return {"version": built["version"], "root_hash": built["root_hash"], "files": files}


class Device:
    """A device with the old system, and the files of the new one on its data partition."""

    def __init__(self, boot: Disk, update: Path) -> None:
        self.boot, self.machine = boot, Machine(boot)
        self.service = Service(self.machine)
        self.update = document(update)
        self._files = update.parent
        self.new: int = self.update["version"]
        self.old = 0

    def start(self) -> None:
        """Boot, and wait until the system is confirmed."""
        self.machine.start()
        self.old = self.wait_for(lambda state: state["confirmed"])["version"]

    def offer(self) -> None:
        """Put the files of the update where the agent puts them, and the stand-in for its proof."""
        folder = f"/var/lib/edge-ota/system/{self.new}"
        for entry in self.update["files"].values():
            path = self._files / str(entry["path"])
            self.machine.put(f"{folder}/{path.name}", path.read_bytes())
        self.machine.put(f"{KEPT}/document", json.dumps(self.update).encode())
        self.machine.put(f"{KEPT}/edge-ota", f'#!/bin/sh\n[ "$1" = verify-system ] && cat {KEPT}/document\n'.encode())
        self.machine.put(f"{KEPT}/ask.py", _ASK.encode())
        self.machine.put(f"{KEPT}/state.py", _STATE.encode())
        self.machine.run(f"chmod 755 {KEPT}/edge-ota; sync")

    def spoil(self, text: str) -> None:
        """Make the new system do something at each start."""
        only = f"grep -q 'IMAGE_VERSION=\"{self.new}\"' /etc/os-release || exit 0\n"
        self.machine.put(f"{KEPT}/spoil", (only + text).encode())

    def install(self, script: str = "") -> dict[str, Any]:
        """Ask the root side for the update and return its answer; the machine restarts then."""
        agent = "/opt/edge-serve/bin/edge-ota"
        self.machine.run(f"mountpoint -q {agent} || mount --bind {KEPT}/edge-ota {agent}")
        if script:
            self.machine.put(f"{KEPT}/script.py", script.encode())
            self.machine.run(f"python3 {KEPT}/script.py {self.new} && sync", 120)
            return {}
        return self.ask({"op": "install", "version": self.new})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the root side, as the agent does; {} = the machine restarted before its answer came."""
        self.machine.put(f"{KEPT}/request", json.dumps(request).encode())
        before = self.state()["boot"]
        ask = f"python3 {KEPT}/ask.py {KEPT}/request >{KEPT}/answer"
        self.machine.run(f"rm -f {KEPT}/answer; systemd-run --quiet --no-block --collect sh -c '{ask}'")
        found: dict[str, Any] = {}

        def answered() -> bool:
            state = self.state()
            with suppress(*UNREACHABLE, AssertionError, ValueError):
                found.update(json.loads(self.machine.run(f"cat {KEPT}/answer")))
            return bool(found) or state.get("boot", before) != before

        assert wait_until(answered, 60 * self.boot.patience, 1), self.boot.console()
        return found

    def update_to_the_end(self) -> dict[str, Any]:
        """Install the new system, and return the status when it is confirmed."""
        self.install()
        return self.wait_for(lambda state: state["version"] == self.new and state["confirmed"])

    def run_new(self) -> dict[str, Any]:
        """Install the new system unless it runs, so that a test does not depend on those before it."""
        if self.state().get("version") == self.new:
            return self.wait_for(lambda state: state["confirmed"])
        self.forget()
        return self.update_to_the_end()

    def state(self) -> dict[str, Any]:
        """Return the status of the root side and the boot; an empty one while the machine does not answer."""
        try:
            self.machine.put(f"{KEPT}/state.py", _STATE.encode())
            done = self.machine.try_run(f"python3 {KEPT}/state.py; cat /proc/sys/kernel/random/boot_id")
            first, _, boot = done.output.strip().partition("\n")
            return {**json.loads(first), "boot": boot}
        except (*UNREACHABLE, ValueError):
            return {}

    def wait_for(self, condition: Any, seconds: float = 90) -> dict[str, Any]:
        """Return the first status that fulfils a condition."""
        found: dict[str, Any] = {}

        def fulfils() -> bool:
            nonlocal found
            found = self.state()
            return bool(found) and bool(condition(found))

        begin = time.monotonic()
        assert wait_until(fulfils, seconds * self.boot.patience, 2), f"{found}\n{self.boot.console()}"
        print(f"  after {time.monotonic() - begin:.0f} s: {found}", flush=True)
        return found

    def serves(self) -> bool:
        """Return whether the server answers from outside."""
        return wait_until(lambda: self.service.status_of("GET", "/v2/health/live") == 200, 20 * self.boot.patience, 1)

    def faults(self) -> str:
        """Return the faults that the device reports."""
        return self.machine.run("cat /run/edge-device/faults/*.json || true")

    def forget(self) -> None:
        """Make the device forget what failed, for the next test."""
        self.machine.run(
            "rm -f /var/lib/edge-system/*.json /boot/edge-slots.json /boot/edge-failed.json"
            f" /run/edge-device/faults/*.json {KEPT}/spoil; systemctl restart edge-slot"
        )


@pytest.fixture(scope="module")
def device(image: Path, request: pytest.FixtureRequest) -> Iterator[Device]:
    """Yield a device that was booted once and has the files of the update."""
    update: Path | None = request.config.getoption("--update")
    assert update is not None, "--update <edge_N.build.json> names the newer image: make test-image-update builds it"
    boot = Disk(image, units={"test-spoiler.service": _SPOILER})
    device = Device(boot, update)
    try:
        device.start()
        device.offer()
        yield device
    finally:
        boot.stop()


def fell_back(device: Device, text: str) -> None:
    """Check that the old system runs again, serves, and says why."""
    state = device.wait_for(lambda state: state["version"] == device.old and str(device.new) in state["bad"], 180)

    assert text in state["bad"][str(device.new)]
    assert text in device.faults()
    assert device.serves()
    refused = device.install()
    assert not refused["ok"]
    assert "publish a higher version" in refused["error"]


def test_a_server_that_never_becomes_ready_falls_back(device: Device) -> None:
    device.spoil(NEVER_READY)
    assert device.install() in ({}, {"ok": True, "version": device.new, "restarting": True})

    fell_back(device, "the server did not answer within")


def test_a_kernel_panic_falls_back(device: Device) -> None:
    device.forget()
    device.spoil(PANIC)
    device.install()

    fell_back(device, "a kernel panic, a hang, or power cuts")


def test_a_hang_falls_back(device: Device) -> None:
    device.forget()
    device.spoil(HANG)
    device.install()

    fell_back(device, "a kernel panic, a hang, or power cuts")


def test_a_crash_of_systemd_falls_back(device: Device) -> None:
    device.forget()
    device.spoil(CRASH)
    device.install()

    fell_back(device, "a kernel panic, a hang, or power cuts")


def test_a_damaged_fresh_slot_falls_back(device: Device) -> None:
    device.forget()
    device.install(_WITHOUT_RESTART)
    damage(device, device.new)

    fell_back(device, "its root cannot be used")


def test_an_update_with_a_model_that_was_broken_before_stays(device: Device) -> None:
    device.forget()
    device.machine.put("/var/lib/edge-serve/models/broken/config.pbtxt", b'backend: "onnxruntime"\nmax_batch_size: 8\n')
    device.machine.put("/var/lib/edge-serve/models/broken/1/model.onnx", b"no model")
    device.machine.run("chmod -R a+rX /var/lib/edge-serve/models; systemctl restart edge-serve", 120)
    device.install()

    state = device.wait_for(lambda state: state["version"] == device.new and state["confirmed"])
    assert state["bad"] == {}
    assert [one["version"] for one in state["entries"]] == [device.old, device.new]
    assert device.serves()
    again = device.wait_for(lambda state: state["version"] == device.new and state["pending"] is None)
    assert again["boot"] == state["boot"]


def test_a_confirmed_slot_stays_after_a_restart(device: Device) -> None:
    before = device.run_new()["boot"]
    device.machine.try_run("systemctl reboot")

    state = device.wait_for(lambda state: state["boot"] != before and state["entries"][-1]["left"] == 5)
    assert state["version"] == device.new


def test_a_damaged_slot_that_was_good_for_long_is_left(device: Device) -> None:
    device.run_new()
    damage(device, device.new)

    state = device.wait_for(lambda state: state["version"] == device.old)
    assert state["bad"] == {}
    assert "Timed out waiting for device" not in device.boot.since_start(), "the slot is left at once"
    assert says(device, "its root cannot be used")
    assert device.serves()


def test_requests_that_arrive_are_answered_while_the_system_changes(device: Device) -> None:
    device.service.add_python_model(busy.MODEL, busy.NOTED)
    device.machine.run("chmod -R a+rX /var/lib/edge-serve/models; systemctl restart edge-serve", 120)
    with busy.Busy(device.service) as clients:
        assert wait_until(lambda: len(clients.answered) > 200, 60 * device.boot.patience), clients.refused
        device.update_to_the_end()

    journal = device.machine.run("journalctl -b -1 -u edge-serve --no-pager -o cat | grep -o 'arrived [-0-9]*[.]'", 60)
    arrived = {line[len("arrived ") : -1] for line in journal.splitlines()}
    print(f"{len(arrived)} requests arrived before the restart, {len(clients.answered)} were answered in all")
    print(f"no answer for {clients.longest_pause():.1f} s; errors meanwhile: {dict(clients.refused)}")
    assert len(arrived) > 200
    assert arrived - clients.answered.keys() == set()


def test_damage_that_does_not_stop_the_system_is_found_by_the_scrub(device: Device) -> None:
    device.run_new()
    damage(device, device.new, 0.97)
    device.wait_for(lambda state: state["version"] == device.new and state["entries"][-1]["left"] == 5)

    device.machine.try_run("systemctl start edge-scrub")
    device.wait_for(lambda state: state["version"] == device.old)
    assert says(device, "its root is damaged at byte")
    assert device.serves()


def says(device: Device, text: str) -> bool:
    """Wait until the health gate has reported why another system runs."""
    return wait_until(lambda: text in device.faults(), 20 * device.boot.patience, 2)


def damage(device: Device, version: int, part: float = 0.0) -> None:
    """Cut the power, change one byte of the root of a version, and boot.

    Args:
        part: of the file system, from its start; 0 = its first block, so that it does not mount.
    """
    device.boot.cut()
    disk, label = device.boot.disk, f"edge_{version}"
    if part:
        root = next(one for one in partitions(disk) if one.label == label)
        flip(disk, root.start + int(device.update["files"]["root"]["bytes"] * part))
    else:
        flip(disk, before_superblock(disk, label))
    device.boot.start()
