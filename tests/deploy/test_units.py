"""The units ask nothing of a systemd that it does not know: it would warn at each start, and do without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.debian.releases import RELEASES
from deploy.program import CHECKOUT

#: the oldest systemd that is served
OLDEST = min(release.systemd for release in RELEASES.values())

#: what came later, and when, of all that a service could use (the manual pages' "Added in version")
SINCE = {
    "ExitType": 250, "LoadCredentialEncrypted": 250, "SetCredentialEncrypted": 250, "RestrictFileSystems": 250,
    "TimeoutStartFailureMode": 246, "NoExecPaths": 248, "ExtensionDirectories": 251, "StartupAllowedCPUs": 250,
    "LogFilterPatterns": 253, "OpenFile": 253, "ReloadSignal": 253, "RestartSteps": 254, "RestartMaxDelaySec": 254,
    "RestartMode": 254, "FileDescriptorStorePreserve": 254, "DelegateSubgroup": 254, "MemoryPressureWatch": 254,
    "MemoryPressureThresholdSec": 254, "MemoryKSM": 254, "ImportCredential": 254, "PollLimitBurst": 255,
    "PollLimitIntervalSec": 255, "SurviveFinalKillSignal": 255, "MemoryZSwapWriteback": 256,
    "PassFileDescriptorsToExec": 256, "PrivatePIDs": 257, "DeferTrigger": 258, "LoadCredential": 250,
}  # fmt: skip

#: the same for values
VALUES_SINCE = {
    ("Type", "notify-reload"): 253,
    ("ProtectControlGroups", "strict"): 257,
    ("ProtectControlGroups", "private"): 257,
    ("PrivateTmp", "disconnected"): 257,
    ("PrivateUsers", "identity"): 257,
}


def lines(text: str) -> list[tuple[str, str]]:
    """Names and values of a unit."""
    return re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


def too_new(text: str, systemd: int) -> list[str]:
    """What that systemd does not know. LoadCredential= is older, but not for directories."""
    names = [name for name, _ in lines(text) if SINCE.get(name, 0) > systemd]
    return names + [f"{name}={value}" for name, value in lines(text) if VALUES_SINCE.get((name, value), 0) > systemd]


def shipped() -> list[tuple[Path, int]]:
    """Every unit and drop-in, with the oldest systemd that gets it."""
    found = []
    for path in sorted((CHECKOUT / "systemd").rglob("*")):
        if path.suffix in (".service", ".socket") or path.parent.suffix == ".d":
            newest = re.fullmatch(r"50-systemd-(\d+)", path.stem)
            found.append((path, int(newest[1]) if newest else OLDEST))
    return [(path, version) for path, version in found if path.is_file()]


@pytest.mark.parametrize(("path", "systemd"), shipped(), ids=lambda value: getattr(value, "name", str(value)))
def test_a_unit_asks_for_what_its_systemd_knows(path: Path, systemd: int) -> None:
    assert too_new(path.read_text(), systemd) == []


def test_every_drop_in_of_a_version_is_needed() -> None:
    """What is in it would be too new for the version before."""
    for path, systemd in shipped():
        if path.name.startswith("50-systemd-"):
            assert too_new(path.read_text(), systemd - 1), path.name


def test_what_is_too_new_is_found() -> None:
    assert too_new("[Service]\nType=notify-reload\nRestartSteps=5\nRestart=always\n", 252) == [
        "RestartSteps", "Type=notify-reload",
    ]  # fmt: skip


def test_the_network_gets_inference_and_metrics_only() -> None:
    """Sockets that listen on all addresses, which a port alone says; gRPC and administration are not among them."""
    opened = {
        path.name
        for path, _ in shipped()
        if any(
            name == "ListenStream" and (value.isdigit() or value.startswith(("0.0.0.0", "[::]")))
            for name, value in lines(path.read_text())
        )
    }
    assert opened == {"edge-serve.socket", "edge-serve-metrics.socket"}


def test_the_service_stops_later_than_its_requests() -> None:
    unit = dict(lines((CHECKOUT / "systemd/edge-serve.service").read_text()))
    settings = dict(lines((CHECKOUT / "systemd/edge-serve.conf").read_text()))

    assert int(unit["TimeoutStopSec"].removesuffix("s")) > int(settings["EDGE_SERVE_EXIT_TIMEOUT_SECS"])
    assert unit["KillMode"] == "mixed", "workers are ended by the front end"
