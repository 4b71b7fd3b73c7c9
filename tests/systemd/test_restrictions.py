"""The arguments of `systemd-run` are the restrictions of the unit."""

from __future__ import annotations

from collections.abc import Sequence

from tests.systemd.restrictions import command, culprits, restrictions


def test_restrictions_of_the_unit_and_of_the_gpu_are_there() -> None:
    found = restrictions()

    for pair in (
        ("MemoryDenyWriteExecute", "yes"), ("SystemCallFilter", "@system-service"), ("DevicePolicy", "closed"),
        ("SystemCallFilter", "~@privileged @resources"), ("DeviceAllow", "char-nvidia* rw"), ("PrivateUsers", "yes"),
        ("CapabilityBoundingSet", ""), ("ProtectProc", "invisible"),
    ):  # fmt: skip
        assert pair in found
    assert not {"ExecStart", "Type", "User", "StateDirectory", "WatchdogSec", "Sockets"} & {key for key, _ in found}
    filters = [value for key, value in found if key == "SystemCallFilter"]
    assert filters.index("@system-service") < filters.index("~@privileged @resources"), "their order counts"


def test_command_leaves_out_groups_that_are_not_there() -> None:
    made = command([("SupplementaryGroups", "root no-such-group"), ("LockPersonality", "yes")], ["true"])

    assert made[-1] == "true"
    assert "SupplementaryGroups=root" in made
    assert "LockPersonality=yes" in made


def test_restriction_that_is_in_the_way_is_found() -> None:
    def works(settings: Sequence[tuple[str, str]]) -> bool:
        return "MemoryDenyWriteExecute" not in dict(settings)

    assert culprits(restrictions(), works) == ["MemoryDenyWriteExecute"]
    assert culprits([("A", "1"), ("B", "1")], lambda settings: not settings) == []
