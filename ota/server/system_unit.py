"""Asks the root side of system updates, which alone writes slots and restarts the machine. One JSON line each way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ota.errors import ServerError, Unsuitable
from ota.server.unit import ask_unit

#: below `system_root`
SOCKET = Path("run/edge-system/socket")
#: to verify the files, and to write them to a slow disk
INSTALL_SECONDS = 2 * 3600.0
_SECONDS = 60.0
_HINT = "see 'systemctl status edge-system.socket'"


class SystemUnit:
    """Client of the unit `edge-system@.service`.

    Args:
        root: `/`; tests have a directory.
    """

    def __init__(self, root: Path) -> None:
        self._socket = root / SOCKET

    def install(self, version: int) -> None:
        """Have a version written into the free slot. The machine restarts after the answer.

        Raises:
            Unsuitable: this device has no root side.
            ServerError: the root side refused it, or does not answer.
        """
        self._ask({"op": "install", "version": version}, INSTALL_SECONDS)

    def cancel(self) -> None:
        """Have the version removed that is installed and waits for its restart. The machine does not restart.

        Raises:
            Unsuitable, ServerError: as `install`.
        """
        self._ask({"op": "cancel"}, _SECONDS)

    def roll_back(self) -> int:
        """Have the machine restart into the other good system. Return its version."""
        found = self._ask({"op": "rollback"}, _SECONDS).get("version")
        return found if isinstance(found, int) else 0

    def factory_reset(self, name: str) -> None:
        """Have the data partition erased at the next boot. The machine restarts after the answer."""
        self._ask({"op": "factory-reset", "name": name}, _SECONDS)

    def check(self) -> None:
        """Refuse a device without a root side.

        Raises:
            Unsuitable: there is none.
        """
        if not self._socket.exists():
            raise Unsuitable(
                f"{self._socket} does not exist: no unit of this device installs systems. Start edge-system.socket on "
                "a device of the image; another device gets its system by its package manager"
            )

    def _ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        self.check()
        answer = ask_unit(str(self._socket), request, limit, hint=_HINT)
        if answer.get("ok") is not True:
            raise ServerError(f"the system was not changed: {answer.get('error') or 'the unit gave no reason'}")
        return answer
