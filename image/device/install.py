"""The installation of a system update into the free slot, step by step; each step leaves a disk that boots.

The agent wrote the files, so they are proven again: `edge-ota verify-system` checks the signatures of the document, and
this module hashes the files itself, while no process can write to them any more. Then systemd-sysupdate writes root,
hash tree, and kernel into the free slot, the kernel last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from image.device import decide
from image.device.data.place import read_place
from image.device.slots import Slots, SlotStore

#: kind of a file in the document -> how its name ends
ENDINGS = {"root": "root", "verity": "verity", "uki": "efi"}
SYSUPDATE = "/usr/lib/systemd/systemd-sysupdate"
VERIFY = "/opt/edge-serve/bin/edge-ota"
VERIFY_SECONDS = 1800.0
UPDATE_SECONDS = 3600.0
#: what the ESP must have left beside the new kernel
SPARE_BYTES = 4 * 1024 * 1024
_BLOCK = 4 * 1024 * 1024

Run = Callable[[Sequence[str], float], str]
Document = Mapping[str, Any]


class UpdateRefused(Exception):
    """A request that was not carried out. The text says why, and what to do."""


def run(command: Sequence[str], seconds: float) -> str:
    """Run a program and return its output.

    Raises:
        UpdateRefused: it cannot be started, fails, or takes too long.
    """
    program = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UpdateRefused(f"{program} did not end within {seconds:.0f} s and was killed") from None
    except OSError as error:
        raise UpdateRefused(f"{program} cannot be started: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise UpdateRefused(f"{program} {command[1]}: {' / '.join(lines[-3:])}")
    return done.stdout


class Installer:
    """Installs one version.

    Args:
        ask: returns the server's status document, or None.
    """

    def __init__(
        self,
        boot: SlotStore,
        ask: Callable[[], dict[str, Any] | None],
        run: Run = run,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._boot, self._ask, self._run, self._clock, self._sleep = boot, ask, run, clock, sleep
        self._incoming = boot.root / "var/lib/edge-ota/system"
        self._stage = boot.state / "stage"

    def install(self, version: int) -> None:
        """Write a version into the free slot. The next boot tries it.

        Raises:
            UpdateRefused: it was not installed, and the running system stays as it is.
            OSError: the same, and no slot was touched.
        """
        running, entries, slots = self._boot.running(), self._boot.entries(), self._boot.load()
        if reason := decide.refuse_install(entries, slots, running, version):
            raise UpdateRefused(reason)
        document = self._verify(version)
        self._take(version, document)
        try:
            self._check_space(document, running)
            self._write(version, running, slots)
        finally:
            shutil.rmtree(self._stage, ignore_errors=True)

    def _verify(self, version: int) -> Document:
        """Return the document of a version. `edge-ota` has checked its signatures, product, and processor."""
        text = self._run([VERIFY, "verify-system", str(version)], VERIFY_SECONDS)
        try:
            document: Document = json.loads(text)
            if document["version"] != version:
                raise UpdateRefused(f"edge-ota verified system {document['version']}, expected {version}")
            for kind in ENDINGS:
                int(document["files"][kind]["sha256"], 16), int(document["files"][kind]["bytes"])
            if len(bytes.fromhex(document["root_hash"])) != 32:
                raise ValueError("root_hash")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UpdateRefused(f"'edge-ota verify-system' printed no document of a system: {error!r}") from None
        return document

    def _take(self, version: int, document: Document) -> None:
        """Link the files into a directory of root, and prove them there.

        The name of a file has the UUID that its partition gets: half of the root hash, by which the initrd finds it.
        """
        shutil.rmtree(self._stage, ignore_errors=True)
        self._stage.mkdir(parents=True, mode=0o700)
        digest = str(document["root_hash"])
        uuids = {"root": f"_{uuid.UUID(digest[:32])}", "verity": f"_{uuid.UUID(digest[32:])}", "uki": ""}
        for kind, ending in ENDINGS.items():
            name = f"edge_{version}.{ending}"
            source = self._incoming / str(version) / name
            target = self._stage / f"edge_{version}{uuids[kind]}.{ending}"
            try:
                os.link(source, target, follow_symlinks=False)
                prove(target, document["files"][kind])
            except OSError as error:
                raise UpdateRefused(
                    f"{name} cannot be read: {error.strerror}; 'edge-ota system apply' fetches it again"
                ) from error

    def _ask_settled(self) -> dict[str, Any] | None:
        """Return the status document once the server answers and no model loads; after a while, the one that there is.

        One answer that is missing would disable the health gate of the new system, and a model that loads at this
        moment would not count.
        """
        begin = self._clock()
        while not decide.is_settled(status := self._ask()) and self._clock() - begin < decide.ANSWER_SECONDS:
            self._sleep(decide.POLL_SECONDS)
        return status

    def _check_space(self, document: Document, running: int) -> None:
        place = os.statvfs(self._boot.esp)
        old = [one for one in self._boot.entries() if one.version != running]
        reclaimed = sum((self._boot.entries_directory / one.name).stat().st_size for one in old)
        free = place.f_bavail * place.f_frsize + reclaimed
        needed = int(document["files"]["uki"]["bytes"]) + SPARE_BYTES
        if free < needed:
            raise UpdateRefused(
                f"the boot partition has {free // 1_000_000} MB free and the update needs {needed // 1_000_000} MB: "
                "remove files that you put there, and try again"
            )

    def _write(self, version: int, running: int, slots: Slots) -> None:
        """Write the slot. The running system boots until the kernel has its name on the ESP, which is the last step."""
        self._boot.write_baseline(decide.baseline_of(running, version, self._ask_settled()))
        before = self._boot.entries()
        try:
            place = read_place(self._boot.run)
            self._boot.save(decide.with_pending(slots, version, place is None or place.lasting))
            # first the kernels: no entry may be left whose slot is overwritten
            self._boot.remove_entries(one for one in before if one.version != running)
            sysupdate = [SYSUPDATE, f"--transfer-source={self._stage}", "--verify=no"]
            # a slot with the label of this version would be taken as complete
            self._run([*sysupdate, "--instances-max=1", "vacuum"], UPDATE_SECONDS)
            self._run([*sysupdate, "update", str(version)], UPDATE_SECONDS)
        except (UpdateRefused, OSError) as error:
            # a slot is overwritten only after its entry is gone
            kept = self._boot.entries() == before and any(one.version != running for one in before)
            if kept:
                self._restore(decide.without_stale_pending(before, slots, running))
            else:
                self._restore(decide.without_others(slots, running))
            why = describe(error) if isinstance(error, OSError) else str(error)
            raise UpdateRefused(
                f"system {version} could not be written: {why}; system {running} runs, and "
                + ("no slot was touched" if kept else "has no other system to fall back to until an update succeeds")
            ) from error

    def _restore(self, slots: Slots) -> None:
        """Write the record and its copy, each where its disk takes it: the error that led here is the one to show."""
        for save in (self._boot.save_record, self._boot.save_copy):
            with contextlib.suppress(OSError):
                save(slots)


def describe(error: OSError) -> str:
    """Return the text of an error of a disk, with the file if it is known."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def prove(path: Path, entry: Mapping[str, Any]) -> None:
    """Take a file away from its owner and compare it with its signed hash.

    The kernel refuses a lease for reading while any process has the file open for writing. After that, only root can
    open it so.

    Raises:
        UpdateRefused: it is another file than the signed one, or can still be written.
        OSError: it cannot be read.
    """
    name, size = path.name, int(entry["bytes"])
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UpdateRefused(f"{name} is not a regular file")
        os.fchown(file.fileno(), 0, 0)
        os.fchmod(file.fileno(), 0o444)
        try:
            fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            raise UpdateRefused(f"{name} is still open for writing: wait until the agent has finished") from None
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_UNLCK)
        digest, length = hashlib.sha256(), 0
        while block := file.read(_BLOCK):
            length += len(block)
            digest.update(block)
            if length > size:
                break
    if length != size or digest.hexdigest() != str(entry["sha256"]):
        raise UpdateRefused(
            f"{name} is not the signed file: {length} bytes with the SHA-256 {digest.hexdigest()[:16]}..., expected "
            f"{size} bytes with {str(entry['sha256'])[:16]}...; 'edge-ota system apply' fetches it again"
        )
