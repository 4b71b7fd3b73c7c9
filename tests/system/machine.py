"""The interface of a booted system."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.system import agent

#: seconds to boot
TRIES = 3
#: errors after which a command is repeated while a machine boots
UNREACHABLE = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command that ended."""

    status: int
    output: str


class Failed(AssertionError):
    """A command on the machine ended with another status than 0."""


class Boot(Protocol):
    """How a machine is started and stopped; nspawn.py, vm.py, and disk.py have one each.

    Attributes:
        kind: `nspawn`, `vm`, or `disk`
        patience: how many times slower than the host it may be
        pace: least seconds between connections to it
        cgroup2: memory limits use cgroups v2
    """

    kind: str
    patience: float
    pace: float
    cgroup2: bool

    def start(self) -> None:
        """Begin to boot."""

    def stop(self) -> None:
        """Shut the machine down; kill it after a time limit."""

    def cut(self) -> None:
        """Stop the machine as a power cut does."""

    def address(self, port: int) -> tuple[str, int]:
        """Return the address of a port of the machine from the host."""

    def memory_limit(self, nbytes: int) -> AbstractContextManager[None]:
        """Limit the memory of the whole machine, where its units cannot have limits of their own."""

    def panicked(self) -> bool:
        """Return whether its kernel panicked since `start`."""

    def console(self) -> str:
        """Return its last lines of output."""


class Machine:
    """One system under test."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot

    def start(self) -> None:
        """Boot, and wait for the agent. Boot again if the emulator made the kernel panic, which happens."""
        seconds = 60 * self.boot.patience
        for _ in range(TRIES):
            self.boot.start()
            wait_until(lambda: self._answers() or self.boot.panicked(), seconds)
            if not self.boot.panicked():
                break
            print(f"the emulated kernel fell over before it had booted:\n{self.boot.console()[-1500:]}", flush=True)
            self.boot.cut()
        if not self._answers():
            raise AssertionError(f"the machine did not boot in {seconds:g} s; its console:\n{self.boot.console()}")
        self.try_run("systemctl is-system-running --wait")  # the device image tests itself at the end of a boot

    def _answers(self) -> bool:
        try:
            self._ask("GET", "/", b"", 5)
        except UNREACHABLE:
            return False
        return True

    def try_run(self, command: str, timeout: float = 60) -> Done:
        """Run a command in a shell of the machine, as root."""
        seconds = timeout * self.boot.patience
        answer = self._ask("POST", "/", json.dumps({"command": command, "timeout": seconds}).encode(), seconds + 10)
        return Done(answer["status"], answer["output"])

    def run(self, command: str, timeout: float = 60) -> str:
        """Run a command and return its output.

        Raises:
            Failed: its status is not 0.
        """
        done = self.try_run(command, timeout)
        if done.status:
            raise Failed(f"{command}\nended with status {done.status}:\n{done.output}")
        return done.output

    def put(self, path: str, content: bytes) -> None:
        """Write a file on the machine."""
        self._ask("PUT", "/" + base64.urlsafe_b64encode(path.encode()).decode(), content, 120)

    def put_folder(self, source: Path, path: str) -> None:
        """Copy the files of a folder to the machine."""
        for file in sorted(source.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                self.put(f"{path}/{file.relative_to(source)}", file.read_bytes())

    def _ask(self, method: str, path: str, body: bytes, timeout: float) -> Any:
        connection = http.client.HTTPConnection(*self.boot.address(agent.PORT), timeout=timeout)
        try:
            connection.request(method, path, body)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def wait_until(condition: Callable[[], bool], seconds: float, step: float = 0.05) -> bool:
    """Return whether `condition` became true within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True
