"""The units of the image, without booting it."""

from __future__ import annotations

import re
from pathlib import Path

from image.device.cli import COMMANDS
from image.device.console.changes import _WATCHED
from image.device.provision.apply import derive
from image.device.provision.configuration import Configuration
from tests.system.image.test_boot import our_units
from tests.system.image.test_exposure import EXCEPTIONS, MOST

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/image_updates.md").read_text()
UNITS = ROOT / "image/mkosi/mkosi.extra/usr/lib/systemd/system"
RULES = ROOT / "image/mkosi/mkosi.images/initrd/mkosi.extra/usr/lib/udev/rules.d"


def test_the_page_explains_each_unit_that_may_have_more_rights() -> None:
    table = PAGE.split("## What the units may do")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\S+\.service)` \| \w", table, re.MULTILINE) == list(EXCEPTIONS)
    assert f"have {MOST} or less" in table
    assert EXCEPTIONS.keys() <= set(our_units())


def lines(unit: Path) -> set[str]:
    return {line for line in unit.read_text().splitlines() if line and line[0] not in "#["}


def test_each_program_of_the_device_is_started_in_the_same_way() -> None:
    """The script starts Python without its packages, which takes less time under emulation."""
    started = [line for unit in UNITS.glob("*.service") for line in lines(unit) if line.startswith("ExecStart=")]
    script = "ExecStart=/usr/lib/edge-device/edge-device "
    assert {line.removeprefix(script) for line in started if line.startswith(script)} == set(COMMANDS)
    assert not any("python3" in line for line in started)


def test_the_health_gate_waits_for_plans() -> None:
    health = lines(UNITS / "edge-health.service")
    assert "Wants=edge-plans.service" in health
    assert any(one.startswith("After=") and "edge-plans.service" in one.split("=")[1].split() for one in health)
    assert any(one.startswith("TimeoutStartSec=") for one in lines(UNITS / "edge-plans.service"))


def test_the_boot_partition_that_the_console_watches_stays_mounted() -> None:
    """An unmount wakes the console, which mounts the partition again: each round would write to it."""
    assert "boot/EFI/Linux" in _WATCHED
    assert lines(UNITS / "boot.automount.d/10-edge-device.conf") == {"TimeoutIdleSec=0"}


def test_the_server_starts_beside_the_network_and_keeps_the_address_to_its_end() -> None:
    drop_in = "edge-serve.service.d/20-network.conf"
    masked = UNITS.parents[3] / "etc/systemd/system" / drop_in
    assert lines(ROOT / "systemd" / drop_in) == {"After=network.target"}
    assert masked.is_symlink()
    assert masked.readlink() == Path("/dev/null")
    assert "KeepConfiguration=dynamic-on-stop" in lines(UNITS.parent / "network/80-edge-device.network")


def test_the_server_gets_more_processor_time_than_the_service_manager() -> None:
    """Its slice lies beside system.slice and init.scope, whose weights are 100."""
    assert lines(UNITS / "edge-serve.service.d/10-edge-device.conf") == {"Slice=edge.slice"}
    assert {"StartupCPUWeight=10000", "CPUWeight=500"} <= lines(UNITS / "edge.slice")


def test_udev_looks_at_all_devices_again_after_the_settings_are_applied() -> None:
    """It is Debian's unit, without its place before sysinit.target."""
    found = lines(UNITS.parents[3] / "etc/systemd/system/systemd-udev-trigger.service")
    assert any(one.startswith("After=") and "edge-provision.service" in one.split() for one in found)
    assert not any(one.startswith("Before=") for one in found)
    assert {"DefaultDependencies=no", "RemainAfterExit=yes", "Type=oneshot"} <= found


def test_a_crash_of_systemd_restarts_the_machine_in_the_initrd_and_after_it() -> None:
    """The kernel disarms the watchdog when a systemd that crashed closes it."""
    for root in (UNITS.parent, RULES.parents[1] / "systemd"):
        settings = lines(root / "system.conf.d/10-edge-device.conf")
        assert {"RuntimeWatchdogSec=30s", "CrashAction=reboot"} <= settings


def test_plans_are_looked_for_with_the_same_view_of_the_device_as_they_were_built_with() -> None:
    """Check what edge-plans.service has else than edge-ota.service. The name of a plan depends on the facts found."""
    differ = lines(UNITS / "edge-plans.service") ^ lines(ROOT / "systemd/edge-ota.service")
    names = {one.partition("=")[0] for one in differ}
    assert names.isdisjoint({"User", "Group", "PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectProc"})
    assert names >= {"ExecStart", "PrivateNetwork"}


def test_the_network_without_settings_is_the_one_of_dhcp() -> None:
    shipped = (UNITS.parent / "network/80-edge-device.network").read_text().splitlines()
    derived = {one.path: one.data for one in derive(Configuration(dhcp=True), "edge-1")}
    expected = (derived["run/systemd/network/50-edge-device.network"] or b"").decode().splitlines()
    assert [line for line in shipped if line and line[0] != "#"] == [line for line in expected if line[0] != "#"]


def test_the_rules_of_the_initrd_come_when_those_of_systemd_have_said_what_they_need() -> None:
    """Check the order of the names, in which udev reads rules. systemd's say that a damaged root is not ready, and the
    type of a partition is known from 60-persistent-storage.rules on."""
    after = {one.name for one in RULES.iterdir() if one.name > "60-persistent-storage.rules"}
    assert after == {"99-boot-partition.rules", "99-verity.rules"}
    assert {one for one in after if one > "99-systemd.rules"} == {"99-verity.rules"}
