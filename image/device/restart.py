"""Restarts the machine. Stopping the units drains the server: it answers each accepted request before it ends."""

from __future__ import annotations

import subprocess

SECONDS = 30.0


def restart() -> None:
    """Ask systemd for a restart that no other job can cancel.

    Stopping edge-serve alone first would open a gap: its sockets would start it again for the next client.
    """
    command = ["systemctl", "start", "--no-block", "--job-mode=replace-irreversibly", "reboot.target"]
    subprocess.run(command, timeout=SECONDS, check=True)
