"""A Debian system in a tar file, made by mmdebstrap and kept in a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.debian.releases import RELEASES

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-serve" / "system-tests"

#: dependencies of the package, tools of the tests, and a web server for the repository of edge-ota
_BASE = ("systemd", "systemd-sysv", "dbus", "libstdc++6", "iproute2", "procps", "curl", "nginx-light")
#: further packages with which a machine boots by itself
_KERNEL = ("linux-image-cloud-amd64", "initramfs-tools", "udev", "e2fsprogs")

_AGENT_UNIT = """\
[Unit]
Description=the test's hand on this machine
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/agent.py
Restart=always
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
"""
_NETWORK = """\
[Match]
Name=en* eth*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """One kind of system.

    Attributes:
        release: `bookworm` or `trixie`
        boots: has a kernel
        journald_library: python3-systemd is installed; otherwise the server uses its own code
    """

    release: str
    boots: bool = False
    journald_library: bool = False

    def packages(self) -> list[str]:
        """Return the names of its packages."""
        python = ("python3", f"python{RELEASES[self.release].python}")
        library = ("python3-systemd",) if self.journald_library else ()
        return [*_BASE, *python, *library, *(_KERNEL if self.boots else ())]

    def archive(self) -> Path:
        """Return the tar file; make it first if it is missing, which takes one to three minutes.

        Raises:
            subprocess.CalledProcessError: mmdebstrap failed and printed the reason.
        """
        packages = ",".join(self.packages())
        name = hashlib.sha256(packages.encode()).hexdigest()[:12]
        path = CACHE / f"{self.release}-{name}.tar"
        if not path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part.tar")
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", self.release, str(part)]
            try:
                subprocess.run(command, check=True)
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
        return path

    def unpack(self, folder: Path) -> None:
        """Unpack a fresh system with the agent into `folder`."""
        folder.mkdir(parents=True)
        # without device nodes, which the container or the kernel creates
        subprocess.run(["tar", "-xf", self.archive(), "-C", folder, "--exclude=./dev/*"], check=True)
        _equip(folder)


def _equip(root: Path) -> None:
    agent = root / "usr/local/lib/agent.py"
    agent.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("agent.py"), agent)
    units = root / "etc/systemd/system"
    (units / "agent.service").write_text(_AGENT_UNIT)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "agent.service").symlink_to("/etc/systemd/system/agent.service")
    (units / "nginx.service").symlink_to("/dev/null")  # a test starts nginx with a configuration of its own
    (root / "etc/hostname").write_text("edge\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost edge\n")
    (root / "etc/systemd/network").mkdir(parents=True, exist_ok=True)
    (root / "etc/systemd/network/10-test.network").write_text(_NETWORK)
    (root / "var/log/journal").mkdir(exist_ok=True)  # kept over a reboot
