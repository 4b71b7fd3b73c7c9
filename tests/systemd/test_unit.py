"""The unit's facts, and the environment that its files make."""

from __future__ import annotations

import os
from pathlib import Path

from edge_serve.systemd.unit import Unit, environment_of, unit_from

SHOWN = {
    "LoadState": "loaded",
    "User": "edge-serve",
    "Environment": "ORT_DISABLE_TELEMETRY=1 \"A=b c\"",
    "EnvironmentFiles": "/usr/lib/edge-serve/edge-serve.conf (ignore_errors=yes)\n/etc/other.conf (ignore_errors=no)",
    "LoadCredential": "",
    "StateDirectory": "edge-serve",
    "RuntimeDirectory": "edge-serve",
    "ReadWritePaths": "-/srv/data",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
}  # fmt: skip


def test_the_properties_of_systemctl_show() -> None:
    unit = unit_from(SHOWN)

    assert unit.user == "edge-serve"
    assert unit.environment == {"ORT_DISABLE_TELEMETRY": "1", "A": "b c"}
    assert unit.files == (("/usr/lib/edge-serve/edge-serve.conf", True), ("/etc/other.conf", False))
    assert unit.made == ("/var/lib/edge-serve", "/run/edge-serve")
    assert unit.writable is not None
    assert "/srv/data" in unit.writable
    assert "/home" in unit.hidden
    assert unit_from({**SHOWN, "ProtectSystem": "full", "ProtectHome": "no"}).writable is None


def test_files_of_a_credential_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "server.key").touch()
    unit = unit_from({**SHOWN, "LoadCredential": f"edge-serve:{tmp_path}"})

    assert unit.credentials == {
        "/run/credentials/edge-serve.service/edge-serve_server.key": str(tmp_path / "server.key")
    }


def test_later_files_win_and_unreadable_ones_are_reported(tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("A=2\nB=2\n")
    (tmp_path / "a.conf").write_text("A=1\nword\n")
    os.mkfifo(tmp_path / "c.conf")
    unit = Unit(environment={"A": "0", "C": "0"}, files=((f"{tmp_path}/*.conf", True), (f"{tmp_path}/none", False)))
    found = environment_of(unit)

    assert found.values == {"A": "2", "B": "2", "C": "0"}
    assert found.files == [f"{tmp_path}/a.conf", f"{tmp_path}/b.conf"]
    assert found.problems == [
        f"{tmp_path}/a.conf line 2: found 'word', expected NAME=value: the line is skipped",
        f"{tmp_path}/c.conf: cannot be read: it is no regular file; systemd passes over it without a word",
        f"{tmp_path}/none: no such file, and EnvironmentFile= of edge-serve.service demands one",
    ]
