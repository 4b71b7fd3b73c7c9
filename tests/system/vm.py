"""A machine in QEMU, emulated: its own kernel, cgroups v2 with limits, and a power plug to pull.

Emulated, because on some machines /dev/kvm exists and no kernel boots with it. Emulation is slow, and the same
everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.system import agent
from tests.system.trees import CACHE, Tree

_STOP_SECONDS = 120.0
_DISK = "3G"
_MEMORY = "2048"
#: ports of the machine that are forwarded from the host
_PORTS = (agent.PORT, 8000, 8002)


class Vm:
    """Implements `machine.Boot`. The disk stays as long as this object's folder: a machine boots after a power cut."""

    kind = "vm"
    patience = 12.0
    #: QEMU itself listens for the machine, with a backlog of one: it resets further connections at the same time
    pace = 0.02
    cgroup2 = True

    def __init__(self, tree: Tree, package: Path) -> None:
        self.folder = CACHE / "machines" / f"vm-{os.getpid()}-{tree.release}"
        self.folder.mkdir(parents=True)
        self._ports = {port: free_port() for port in _PORTS}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "console.log"
        self._before = 0
        self._make_disk(tree, package)

    def start(self) -> None:
        """Begin to boot."""
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in self._ports.items())
        command = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", "2", "-m", _MEMORY,
            "-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio",
            "-kernel", str(self.folder / "vmlinuz"), "-initrd", str(self.folder / "initrd.img"),
            "-append", "root=/dev/vda rw console=ttyS0 panic=5 audit=0 net.ifnames=0",
            "-drive", f"file={self.folder / 'disk.qcow2'},if=virtio,format=qcow2",
            "-netdev", f"user,id=n0{forwards}", "-device", "virtio-net-pci,netdev=n0,romfile=",
            "-device", "virtio-rng-pci",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._before = log.tell()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

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
        """Return whether the kernel panicked: the emulator may run code that the kernel is just patching."""
        with self._log.open("rb") as log:
            log.seek(self._before)
            return b"Kernel panic" in log.read()

    def console(self) -> str:
        """Return its last lines of output."""
        return self._log.read_text(errors="replace")[-5000:]

    def _make_disk(self, tree: Tree, package: Path) -> None:
        """Make the disk with the package installed in a chroot: under emulation that would take many minutes."""
        root = self.folder / "root"
        tree.unpack(root)
        (root / agent.KEPT[1:]).mkdir()
        shutil.copy(package, root / agent.KEPT[1:])
        (root / "dev/null").touch()  # a chroot has no such device
        subprocess.run(
            ["chroot", str(root), "dpkg", "-i", f"{agent.KEPT}/{package.name}"], check=True, capture_output=True
        )
        (root / "dev/null").unlink()
        for name, kept in (("vmlinuz", "vmlinuz-*"), ("initrd.img", "initrd.img-*")):
            shutil.copy(next((root / "boot").glob(kept)), self.folder / name)
        network = root / "etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
        network.symlink_to("/lib/systemd/system/systemd-networkd.service")
        raw = self.folder / "disk.raw"
        subprocess.run(
            ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(raw), _DISK], check=True, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(root)
        image = self.folder / "disk.qcow2"
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(raw), "-F", "raw", str(image)]
        subprocess.run(command, check=True)


def why_not() -> str:
    """Return why this host cannot run virtual machines; "" = it can."""
    programs = ("qemu-system-x86_64", "qemu-img", "mke2fs", "mmdebstrap", "dpkg-deb")
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install qemu-system-x86 qemu-utils e2fsprogs mmdebstrap"
    return "" if os.geteuid() == 0 else "only root can make a tree with root's files: run the tests as root"


def free_port() -> int:
    """Return a port of loopback that no program listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
