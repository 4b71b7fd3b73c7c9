"""A machine in a container: systemd as process 1 on this machine's kernel, in a network namespace of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.system.trees import CACHE, Tree

_STOP_SECONDS = 20.0

#: system calls that containers may not make by default, and machines may
_LANDLOCK = "landlock_create_ruleset landlock_add_rule landlock_restrict_self"


class Nspawn:
    """Implements `machine.Boot`."""

    kind = "nspawn"
    patience = 1.0
    pace = 0.0
    cgroup2 = False

    def __init__(self, tree: Tree) -> None:
        self._name = f"edge-{os.getpid()}"
        self._veth = f"ve{os.getpid()}"
        self.root = CACHE / "machines" / self._name
        self._log = CACHE / "machines" / f"{self._name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        # the two ends of the link between host and container, with other names in each run of the tests
        cable = f"10.213.{os.getpid() % 256}."
        first = os.getpid() // 256 % 64 * 4
        self._here, self._there = f"{cable}{first + 1}", f"{cable}{first + 2}"
        self._group = Path("/sys/fs/cgroup/memory") / self._name
        tree.unpack(self.root)

    def start(self) -> None:
        """Begin to boot."""
        if not self._group.exists():
            self._connect()
        command = [
            "systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe",
            f"--directory={self.root}", f"--machine={self._name}", f"--network-namespace-path=/run/netns/{self._name}",
            "--link-journal=no", "--resolv-conf=off", "--timezone=off", f"--system-call-filter={_LANDLOCK}",
        ]  # fmt: skip
        self._group.mkdir(exist_ok=True)
        grouped = ["sh", "-c", f'echo $$ > {self._group}/cgroup.procs; exec "$@"', "sh", *command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(grouped, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def refused(self) -> str:
        """Return why a container cannot run on this host; "" = it can."""
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe"]
        done = subprocess.run(
            [*command, f"--directory={self.root}", "/bin/true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return done.stderr.strip() if done.returncode else ""

    def stop(self) -> None:
        """Shut down and remove the machine."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)  # makes nspawn ask process 1 to power off
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.cut()
        _ip(f"netns del {self._name}", check=False)
        _ip(f"link del {self._veth}", check=False)
        shutil.rmtree(self.root, ignore_errors=True)
        self._log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._group.rmdir()

    def cut(self) -> None:
        """Stop all processes as a power cut does; the host's kernel still writes their data."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError):
            for process in children.read_text().split():  # kills process 1, and with it the container
                os.kill(int(process), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._process.kill()
        self._process.wait()
        self._process = None

    def address(self, port: int) -> tuple[str, int]:
        """Return the container's own address."""
        return self._there, port

    @contextlib.contextmanager
    def memory_limit(self, nbytes: int) -> Iterator[None]:
        """Limit the container from the host: with cgroups v1 its own systemd cannot."""
        limit = self._group / "memory.limit_in_bytes"
        limit.write_text(str(nbytes))
        try:
            yield
        finally:
            limit.write_text("-1")

    def panicked(self) -> bool:
        """Return False: its kernel is the host's."""
        return False

    def console(self) -> str:
        """Return the output of its process 1."""
        return self._log.read_text(errors="replace")[-5000:]

    def _connect(self) -> None:
        """Connect the host with a new network namespace."""
        _ip(f"netns add {self._name}")
        _ip(f"link add {self._veth} type veth peer name host0 netns {self._name}")
        _ip(f"addr add {self._here}/30 dev {self._veth}")
        _ip(f"link set {self._veth} up")
        _ip(f"-n {self._name} addr add {self._there}/30 dev host0")
        _ip(f"-n {self._name} link set host0 up")
        _ip(f"-n {self._name} link set lo up")


def why_not() -> str:
    """Return why this host cannot run containers; "" = it can."""
    if os.geteuid():
        return "systemd-nspawn needs root"
    missing = [program for program in ("systemd-nspawn", "mmdebstrap", "ip", "dpkg-deb") if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install systemd-container mmdebstrap iproute2"
    probe = f"edge-probe-{os.getpid()}"
    if _ip(f"netns add {probe}", check=False):
        return "no network namespace can be made here"
    _ip(f"netns del {probe}", check=False)
    return ""


def _ip(arguments: str, *, check: bool = True) -> int:
    done = subprocess.run(["ip", *arguments.split()], check=check, capture_output=not check)
    return done.returncode
