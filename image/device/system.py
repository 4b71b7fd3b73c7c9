"""The root side of system updates: one request of the agent over a socket, one answer. Only it installs and rolls back.

{"op": "install", "version": 12}            write version 12 into the free slot, and restart
{"op": "cancel"}                            remove the version that is installed and waits for its restart
{"op": "rollback"}                          restart into the other good system
{"op": "factory-reset", "name": "edge-1"}   erase the data partition at the next boot; the name must be the device's
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from image.device import decide, files, server
from image.device.install import Installer, UpdateRefused, describe
from image.device.restart import RestartFailed, restart
from image.device.slots import MOST_BYTES, Failure, SlotStore

MOST_REQUEST = 4096
#: a client that connects and says nothing keeps no process
REQUEST_SECONDS = 30.0

Answer = dict[str, Any]


def main() -> int:
    """Answer the request on standard input. Return 0 if it was carried out."""
    answer, then = Requests(SlotStore(), restart).carry_out(read_request(sys.stdin.fileno()))
    with contextlib.suppress(BrokenPipeError):  # the agent ended meanwhile, and the slots were changed all the same
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
    if not answer["ok"]:
        print(f"refused: {answer['error']}", file=sys.stderr)
    try:
        if then is not None:
            then()
    except RestartFailed as error:
        print(f"{error}; restart it by its power switch", file=sys.stderr)
        return 1
    return 0


def read_request(descriptor: int) -> Mapping[str, Any]:
    """Return the request; an empty one if no JSON object came in time."""
    data = b""
    while not data.endswith(b"\n") and len(data) <= MOST_REQUEST:
        if not select.select([descriptor], [], [], REQUEST_SECONDS)[0] or not (block := os.read(descriptor, 4096)):
            break
        data += block
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Requests:
    """Carries requests out, one at a time."""

    def __init__(self, boot: SlotStore, restart: Callable[[], None], installer: Installer | None = None) -> None:
        self._boot, self._restart = boot, restart
        self._installer = installer or Installer(boot, server.ask)

    def carry_out(self, request: Mapping[str, Any]) -> tuple[Answer, Callable[[], None] | None]:
        """Return the answer, and the restart that follows it."""
        operations = {
            "install": self._install,
            "cancel": self._cancel,
            "rollback": self._roll_back,
            "factory-reset": self._factory_reset,
        }
        operation = operations.get(str(request.get("op")))
        try:
            if operation is None:
                raise UpdateRefused(f"the operation {request.get('op')!r} is not known: {', '.join(operations)}")
            answer = {"ok": True, **operation(request)}
            return answer, self._restart if answer.get("restarting") else None
        except (UpdateRefused, ValueError) as error:
            return {"ok": False, "error": str(error)}, None
        except OSError as error:
            return {"ok": False, "error": f"{describe(error)}; see 'journalctl -u edge-system@*'"}, None

    def _install(self, request: Mapping[str, Any]) -> Answer:
        version = request.get("version")
        if type(version) is not int or not 0 < version < 10**10:
            raise UpdateRefused(f"the version is {version!r}, expected a number")
        with self._locked():
            self._refuse_leaving()
            running, entries, slots = self._boot.running(), self._boot.entries(), self._boot.load()
            if not decide.waits_for_restart(entries, slots, running, version):
                self._installer.install(version)
        return {"version": version, "restarting": True}

    def _cancel(self, request: Mapping[str, Any]) -> Answer:
        with self._locked():
            self._refuse_leaving()
            running, slots = self._boot.running(), self._boot.load()
            if slots.pending in (None, running):
                raise UpdateRefused("no version waits for its restart")
            # first the kernel, which any restart would start; without its entry, the next boot clears the record
            self._boot.remove_entries(one for one in self._boot.entries() if one.version == slots.pending)
            self._boot.save(decide.without_pending(self._boot.entries(), slots, running))
        return {"version": running}

    def _roll_back(self, request: Mapping[str, Any]) -> Answer:
        with self._locked():
            running = self._boot.running()
            target = decide.target_of_rollback(self._boot.entries(), self._boot.load(), running)
            if target is None:
                raise UpdateRefused(f"system {running} is the only good one: this device has none to go back to")
            self._boot.condemn(Failure(running, "operator", f"an operator went back to system {target}"))
            return {"version": target, "restarting": True}

    def _factory_reset(self, request: Mapping[str, Any]) -> Answer:
        name = device_name(self._boot.root)
        if request.get("name") != name:
            raise UpdateRefused(f"the name is {request.get('name')!r}, and this device is {name!r}: nothing was erased")
        with self._locked():
            self._refuse_leaving()
            files.replace(self._boot.esp / "factory-reset", f"{name}\n".encode())
        return {"name": name, "restarting": True}

    def _refuse_leaving(self) -> None:
        """Refuse a change of a system that is condemned: an installation would remove the one that starts next.

        Raises:
            UpdateRefused: the running system is condemned. A rollback is accepted again, in case its restart failed.
        """
        if self._boot.is_leaving():
            raise UpdateRefused("the device restarts into another system: try again after that")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._boot.lock(wait=False))
            except BlockingIOError:
                raise UpdateRefused("another system update is being installed: wait until it ends") from None
            yield


def device_name(root: Path) -> str:
    """Return the name that the console shows; the host name if there is none."""
    try:
        found = json.loads(files.read_if_there(root / "run/edge-device/status.json", MOST_BYTES) or b"")
        name = str(found["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        name = ""
    return name or os.uname().nodename
