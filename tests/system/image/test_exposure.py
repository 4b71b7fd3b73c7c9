"""What the units of the device could do if they were taken over, and the ports of UDP that a scan cannot tell apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.system import agent
from tests.system.image.test_boot import our_units
from tests.system.machine import Machine

#: `systemd-analyze security` of the server and the agent
MOST = 2.0
#: units that may have more, and how much; docs/image_updates.md says why (its section "What the units may do")
EXCEPTIONS = {"edge-system@.service": 2.4, "edge-slot-failed.service": 9.5}
#: DHCP's clients, and multicast DNS
UDP = {68, 546, 5353}


def exposures(machine: Machine, units: Sequence[str]) -> dict[str, float]:
    """Return the exposure of each unit; of a template, that of an instance."""
    instances = {unit.replace("@.", "@x."): unit for unit in units}
    report = machine.run(f"systemd-analyze security --no-pager {' '.join(instances)}", 120)
    found = re.findall(r"exposure level for (\S+): ([0-9.]+)", report)
    assert {name for name, _ in found} == instances.keys(), report[-3000:]
    return {instances[name]: float(level) for name, level in found}


def test_only_units_that_need_it_have_rights(machine: Machine) -> None:
    found = exposures(machine, [unit for unit in our_units() if unit.endswith(".service")])
    limits = {unit: EXCEPTIONS.get(unit, MOST) for unit in found}
    for unit, level in sorted(found.items(), key=lambda one: one[1]):
        print(f"{unit:32} {level:4.1f}, at most {limits[unit]:4.1f}")
    assert [unit for unit, level in found.items() if level > limits[unit]] == []
    assert EXCEPTIONS.keys() <= found.keys(), "an exception for a unit that does not exist"


def test_no_other_port_of_udp_is_open(machine: Machine) -> None:
    lines = [line.split() for line in machine.run("ss -Hlntu").splitlines()]
    outside = [(line[0], line[4]) for line in lines if not line[4].startswith(("127.", "[::1]"))]
    print(outside)
    assert {int(address.rpartition(":")[2]) for kind, address in outside if kind == "udp"} <= UDP
    tcp = {int(address.rpartition(":")[2]) for kind, address in outside if kind == "tcp"}
    assert tcp == {8000, 8001, 8002, agent.PORT}
