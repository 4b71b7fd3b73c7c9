"""Restarts the machine. Stopping the units drains the server: it answers each accepted request before it ends."""

from __future__ import annotations

import subprocess

SECONDS = 30.0


class RestartFailed(Exception):
    """systemd did not take the restart. The machine runs on."""


def restart() -> None:
    """Ask systemd for a restart that no other job can cancel.

    Stopping edge-serve alone first would open a gap: its sockets would start it again for the next client.

    Raises:
        RestartFailed: systemctl cannot be started, fails, or does not end in time.
    """
    command = ["systemctl", "start", "--no-block", "--job-mode=replace-irreversibly", "reboot.target"]
    try:
        subprocess.run(command, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RestartFailed(f"the machine could not be restarted: {error}") from error
