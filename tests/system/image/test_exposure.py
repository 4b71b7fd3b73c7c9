"""What the units of the device could do if they were taken over, and the ports of UDP that a scan cannot tell apart."""

from __future__ import annotations

import re

from tests.system import agent
from tests.system.image.test_boot import our_units
from tests.system.machine import Machine

#: `systemd-analyze security` of the server and the agent
MOST = 2.0
#: units that may have more, and why
EXCEPTIONS = {
    "edge-system@.service": "writes the other slot, and restarts the machine",
    "edge-health.service": "renames entries of the boot partition, and restarts the machine",
    "edge-slot.service": "renames entries of the boot partition",
    "edge-slot-failed.service": "restarts the machine",
    "edge-scrub.service": "reads the block device of the root, and restarts the machine",
    "edge-provision.service": "writes the settings of the system, and removes secrets from the boot partition",
    "edge-identity.service": "makes the keys of the device",
    "edge-console.service": "writes to the screen and the serial port",
}
#: DHCP's clients, and multicast DNS
UDP = {68, 546, 5353}


def exposure(machine: Machine, unit: str) -> float:
    """Return the exposure of a unit; of a template, that of an instance."""
    report = machine.run(f"systemd-analyze security --no-pager {unit.replace('@.', '@x.')}", 60)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", report)
    assert found, report
    return float(found[1])


def test_only_units_that_need_it_have_rights(machine: Machine) -> None:
    found = {unit: exposure(machine, unit) for unit in our_units() if unit.endswith(".service")}
    for unit, level in sorted(found.items(), key=lambda one: one[1]):
        print(f"{level:4.1f}  {unit}  {EXCEPTIONS.get(unit, '')}")
    assert [unit for unit, level in found.items() if level > MOST and unit not in EXCEPTIONS] == []


def test_no_other_port_of_udp_is_open(machine: Machine) -> None:
    lines = [line.split() for line in machine.run("ss -Hlntu").splitlines()]
    outside = [(line[0], line[4]) for line in lines if not line[4].startswith(("127.", "[::1]"))]
    print(outside)
    assert {int(address.rpartition(":")[2]) for kind, address in outside if kind == "udp"} <= UDP
    tcp = {int(address.rpartition(":")[2]) for kind, address in outside if kind == "tcp"}
    assert tcp == {8000, 8001, 8002, agent.PORT}
