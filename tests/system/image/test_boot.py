"""Time from the start of the kernel to health ready, in emulation; quiet cores are needed for figures that count.

A unit that starts after all others writes the times to the second serial port: also without a network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from deploy.program import CHECKOUT
from tests.system.disk import Disk, Hardware
from tests.system.machine import wait_until

#: seconds to health ready, their share of the boot without our units, and the cost of a missing network or clock
READY, FACTOR, SLOWER = 60.0, 1.4, 10.0
#: boots with our units and without them, odd
PAIRS = 3
#: a unit of the initrd, which the device can do without; edge-state mounts the data
READAHEAD = "edge-readahead.service"
_LIMIT = 600.0
_END = "-- end of the times --"
_PROBE = f"""\
[Unit]
Description=the times of this boot
After=multi-user.target edge-serve.service
[Service]
ExecStart=/bin/sh -c 'systemctl is-system-running --wait; \\
systemctl show -p Id -p ActiveEnterTimestampMonotonic edge-serve.service multi-user.target; \\
systemd-analyze time; systemctl show -p StatusText edge-serve.service; date +epoch:%%s; \\
systemd-analyze critical-chain --no-pager edge-serve.service; systemd-analyze blame --no-pager | head -25; \\
systemctl --failed --no-pager --plain --no-legend; \\
timeout 60 sh -c "until [ -e /run/edge-device/status.json ]; do sleep 1; done"; cat /run/edge-device/faults/*.json; \\
echo {_END}'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS1
"""
#: a boot waits for none of these
_WAITS = re.compile("network-online|wait-online|time-sync|time-wait-sync")


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a boot in seconds since the start of the kernel.

    Attributes:
        ready: the service is ready; 0 = it did not start
        multi_user: multi-user.target is active
        report: all that the unit wrote
    """

    ready: float
    multi_user: float
    report: str


def our_units() -> list[str]:
    """Return the units of the package and of the image."""
    folders = (CHECKOUT / "systemd", CHECKOUT / "image/mkosi/mkosi.extra/usr/lib/systemd/system")
    kinds = (".service", ".socket", ".timer", ".path")
    return sorted({path.name for one in folders for path in one.glob("edge-*") if path.suffix in kinds})


def times(image: Path, name: str, words: str = "", hardware: Hardware | None = None) -> Times:
    """Boot the image once, and print the times."""
    boot = Disk(image, agent=False, units={"edge-times.service": _PROBE}, words=words, hardware=hardware)
    try:
        boot.start()
        log = boot.second_console
        assert wait_until(lambda: log.exists() and _END in log.read_text(errors="replace"), _LIMIT, 0.5), boot.console()
        report = log.read_text(errors="replace").replace("\r", "")
    finally:
        boot.stop()
    found = {
        unit: int(micros) / 1e6
        for unit, micros in re.findall(r"Id=(\S+)\nActiveEnterTimestampMonotonic=(\d+)", report)
        + [(unit, micros) for micros, unit in re.findall(r"ActiveEnterTimestampMonotonic=(\d+)\nId=(\S+)", report)]
    }
    made = Times(found.get("edge-serve.service", 0.0), found["multi-user.target"], report)
    print(f"{name}: ready {made.ready:.1f} s, multi-user.target {made.multi_user:.1f} s\n{report}", flush=True)
    return made


@pytest.fixture(scope="module")
def pairs(image: Path) -> list[tuple[Times, Times]]:
    """Return the times with a network and a clock, and of the same image without our units, in turn.

    The speed of a shared machine changes from boot to boot, so single ones say little.
    """
    masked = " ".join(f"systemd.mask={unit}" for unit in (*our_units(), READAHEAD))
    return [
        (times(image, f"as shipped, {turn}"), times(image, f"without our units, {turn}", words=masked))
        for turn in range(1, PAIRS + 1)
    ]


@pytest.fixture(scope="module")
def usual(pairs: list[tuple[Times, Times]]) -> Times:
    """Return the boot with the median time to health ready."""
    return sorted((one for one, _ in pairs), key=lambda one: one.ready)[PAIRS // 2]


def test_the_device_is_ready_in_time_and_waits_for_no_network_and_no_clock(usual: Times) -> None:
    assert 0 < usual.ready <= READY
    assert "ready" in usual.report
    assert not _WAITS.search(usual.report), "neither in the chain nor among the units that took time"


def test_our_units_cost_little(usual: Times, pairs: list[tuple[Times, Times]]) -> None:
    assert all(plain.ready == 0.0 for _, plain in pairs), "the service is masked"
    plain = median(plain.multi_user for _, plain in pairs)
    each = ", ".join(f"{one.ready / plain.multi_user:.2f}" for one, plain in pairs)
    print(f"ready / plain boot: {usual.ready / plain:.2f} (medians: {usual.ready:.1f} s, {plain:.1f} s; pairs: {each})")
    assert usual.ready <= FACTOR * plain


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        pytest.param("without a network", Hardware(network=False), id="network"),
        pytest.param("without a clock", Hardware(clock="1970-01-01T00:00:00"), id="clock"),
    ],
)
def test_a_missing_network_or_clock_delays_nothing(usual: Times, image: Path, name: str, hardware: Hardware) -> None:
    found = times(image, name, hardware=hardware)
    assert 0 < found.ready <= usual.ready + SLOWER
    assert ('"code": "clock"' in found.report) == bool(hardware.clock)
