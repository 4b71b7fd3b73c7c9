"""The units use no setting that their systemd does not know: it would warn at each start, and ignore the setting."""

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
    """Yield the names and values of a unit."""
    return re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


def too_new(text: str, systemd: int) -> list[str]:
    """Return the settings that a systemd does not know. LoadCredential= is older, but not for directories."""
    names = [name for name, _ in lines(text) if SINCE.get(name, 0) > systemd]
    return names + [f"{name}={value}" for name, value in lines(text) if VALUES_SINCE.get((name, value), 0) > systemd]


def shipped() -> list[tuple[Path, int]]:
    """Yield every unit and drop-in, with the oldest systemd that gets it."""
    found = []
    for path in sorted((CHECKOUT / "systemd").rglob("*")):
        if path.suffix in (".service", ".socket") or path.parent.suffix == ".d":
            newest = re.fullmatch(r"50-systemd-(\d+)", path.stem)
            found.append((path, int(newest[1]) if newest else OLDEST))
    return [(path, version) for path, version in found if path.is_file()]


@pytest.mark.parametrize(("path", "systemd"), shipped(), ids=lambda value: getattr(value, "name", str(value)))
def test_unit_uses_settings_that_its_systemd_knows(path: Path, systemd: int) -> None:
    assert too_new(path.read_text(), systemd) == []


def test_every_drop_in_of_a_version_is_needed() -> None:
    """Check that the settings are too new for the version before."""
    for path, systemd in shipped():
        if path.name.startswith("50-systemd-"):
            assert too_new(path.read_text(), systemd - 1), path.name


def test_settings_that_are_too_new_are_found() -> None:
    assert too_new("[Service]\nType=notify-reload\nRestartSteps=5\nRestart=always\n", 252) == [
        "RestartSteps", "Type=notify-reload",
    ]  # fmt: skip


def test_devices_of_nvidia_are_all_that_is_opened_for_them() -> None:
    opened = {
        (path.name, name, value.partition(" ")[0])
        for path, _ in shipped()
        if path.name in ("10-nvidia.conf", "11-tegra.conf")
        for name, value in lines(path.read_text())
    }

    assert {name for _, name, _ in opened} == {"DeviceAllow", "SupplementaryGroups"}
    devices = {device for _, name, device in opened if name == "DeviceAllow"}
    assert {one for one in devices if not re.match(r"char-nv|/dev/(nv|host1x|dri/)", one)} == set()
    assert {"char-nvidia*", "char-nvhost*", "char-nvgpu*", "/dev/nvmap"} <= devices


def test_only_inference_and_metrics_are_open_to_the_network() -> None:
    """Check the sockets that listen on all addresses (a port without an address): not gRPC, and not administration."""
    opened = {
        path.name
        for path, _ in shipped()
        if any(
            name == "ListenStream" and (value.isdigit() or value.startswith(("0.0.0.0", "[::]")))
            for name, value in lines(path.read_text())
        )
    }
    assert opened == {"edge-serve.socket", "edge-serve-metrics.socket"}


def test_stop_timeout_of_the_unit_is_longer_than_the_exit_timeout() -> None:
    unit = dict(lines((CHECKOUT / "systemd/edge-serve.service").read_text()))
    settings = dict(lines((CHECKOUT / "systemd/edge-serve.conf").read_text()))

    assert int(unit["TimeoutStopSec"].removesuffix("s")) > int(settings["EDGE_SERVE_EXIT_TIMEOUT_SECS"])
    assert unit["KillMode"] == "mixed", "workers are ended by the front end"


def test_trials_of_releases_have_the_variables_of_the_service() -> None:
    found = [
        [line for line in (CHECKOUT / "systemd" / name).read_text().splitlines() if line.startswith("EnvironmentFile=")]
        for name in ("edge-serve.service", "edge-ota-trial@.service")
    ]
    assert found[0]
    assert found[0] == found[1]
