"""The device image on an emulated machine: UEFI firmware, its whole disk, and a power plug to pull.

The image boots byte for byte as it ships. Its command line forbids credentials from the firmware; a further OEM string
of the firmware permits them again, so that the test's agent comes in as a unit. With Secure Boot that would not work.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from image import qemu
from image.run import for_arm
from tests.system import agent
from tests.system.trees import CACHE
from tests.system.vm import free_port

_STOP_SECONDS = 180.0
#: ports of the device that are forwarded from the host
PORTS = (agent.PORT, 8000, 8001, 8002, 22)

_CREDENTIAL = "io.systemd.credential.binary:"
_COMMAND_LINE = "io.systemd.stub.kernel-cmdline-extra="
_UNIT = """\
[Unit]
Description=the test's hand on this machine
[Service]
ExecStart=/usr/bin/python3 -c "import base64; exec(base64.b64decode('{program}'))"
Restart=always
OOMScoreAdjust=-1000
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine that an image boots on. See image.qemu.Emulated for its fields."""

    gib: int = qemu.DISK_GIB
    memory_mib: int = 2048
    cores: int = 2
    network: bool = True
    clock: str = ""
    more: Sequence[str] = ()


class Disk:
    """Implements `machine.Boot`. The disk stays as long as this object's folder: a machine boots after a power cut.

    Attributes:
        disk: the raw file of the disk, for changes between `cut` and `start`
    """

    kind = "disk"
    patience = 12.0
    #: QEMU itself listens for the machine, with a backlog of one: it resets further connections at the same time
    pace = 0.02
    cgroup2 = True

    def __init__(
        self, image: Path, *, shipped: bool = False, agent: bool = True, units: Mapping[str, str] | None = None,
        words: str = "", hardware: Hardware | None = None,
    ) -> None:  # fmt: skip
        """Write the image to a disk.

        Args:
            shipped: nothing comes in through the firmware: no agent, no units, no words.
            agent: the agent is one of the units
            units: further units by name, started with multi-user.target
            words: added to the kernel's command line
        """
        self.hardware = hardware or Hardware()
        self._arm = for_arm(image)
        self.folder = CACHE / "machines" / f"disk-{os.getpid()}-{len(_made)}"
        _made.append(self.folder)
        self.folder.mkdir(parents=True)
        self.disk = self.folder / "disk.raw"
        self._variables = self.folder / "variables"
        self._log = self.folder / "console.log"
        #: what units write to /dev/ttyS1
        self.second_console = self.folder / "second.log"
        self._ports = {port: free_port() for port in PORTS}
        self._process: subprocess.Popen[bytes] | None = None
        self._before = 0
        units = {**(units or {}), **({"test-agent.service": _agent()} if agent else {})}
        self._strings = () if shipped else self._door(units, words)
        qemu.new_disk(image, self.disk, self.hardware.gib)
        qemu.new_variables(self._variables, self._arm)

    def start(self) -> None:
        """Begin to boot."""
        emulated = qemu.Emulated(
            self.disk, self._variables, self._ports, self.hardware.memory_mib, self.hardware.cores,
            self.hardware.network, self.hardware.clock, strings=self._strings,
            serial=("stdio", f"file:{self.second_console}"), more=self.hardware.more, arm=self._arm,
        )  # fmt: skip
        with self._log.open("ab") as log:
            self._before = log.tell()
            self._process = subprocess.Popen(emulated.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def change(self, **hardware: object) -> None:
        """Change the hardware; the next start uses it."""
        self.hardware = replace(self.hardware, **hardware)  # type: ignore[arg-type]  # names of its fields

    def stop(self) -> None:
        """Kill the machine and delete its disk, which needs no shutdown."""
        self.cut()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ended(self) -> None:
        """Wait until the machine has powered itself off."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.cut()

    def cut(self) -> None:
        """Cut the power: data that the machine had not written to disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def address(self, port: int) -> tuple[str, int]:
        """Return the port of the host that is forwarded to the machine."""
        return "127.0.0.1", self._ports[port]

    def memory_limit(self, nbytes: int) -> contextlib.AbstractContextManager[None]:
        """Do nothing: MemoryMax= of the unit works."""
        return contextlib.nullcontext()

    def panicked(self) -> bool:
        """Return whether the kernel panicked since `start`, or QEMU itself has ended, which has happened once."""
        gone = self._process is not None and self._process.poll() is not None
        return gone or "Kernel panic" in self.since_start()

    def since_start(self) -> str:
        """Return the console's output since `start`."""
        with self._log.open("rb") as log:
            log.seek(self._before)
            return log.read().decode(errors="replace")

    def console(self) -> str:
        """Return its last lines of output."""
        return self.since_start()[-5000:]

    def _door(self, units: Mapping[str, str], words: str) -> Sequence[str | Path]:
        """Return the OEM strings that bring in units, written to files: a unit is longer than a command line's word."""
        texts = {f"systemd.extra-unit.{name}": unit for name, unit in units.items()}
        wants = "".join(f"Wants={name}\n" for name in units)
        texts["systemd.unit-dropin.multi-user.target~test"] = f"[Unit]\n{wants}"
        files = []
        for number, (name, text) in enumerate(texts.items()):
            path = self.folder / f"credential-{number}"
            path.write_text(f"{_CREDENTIAL}{name}={base64.b64encode(text.encode()).decode()}")
            files.append(path)
        return (f"{_COMMAND_LINE}systemd.import_credentials=yes {words}".strip(), *files)


_made: list[Path] = []


def _agent() -> str:
    program = base64.b64encode(Path(agent.__file__).read_bytes()).decode()
    return _UNIT.format(program=program)


def why_not() -> str:
    """Return why this host cannot emulate the device; "" = it can."""
    return qemu.why_not()
