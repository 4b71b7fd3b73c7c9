"""Installation by dpkg: its output, byte code, and interruptions in each step."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from deploy.debian.package import DOCUMENTS, build
from tests.deploy.test_texts import check
from tests.system import models
from tests.system.agent import KEPT
from tests.system.machine import wait_until
from tests.system.packages import Package, before, changed, describe
from tests.system.service import Service

OPT = "/opt/edge-serve"

#: prints the sources below a folder that have no byte code, and byte code that belongs to no source or to another one
_BYTE_CODE = """\
import importlib.util, pathlib, sys

folder = pathlib.Path(sys.argv[1])
sources = set(folder.rglob("*.py"))
compiled = {path: pathlib.Path(importlib.util.source_from_cache(str(path))) for path in folder.rglob("*.pyc")}
for path, source in compiled.items():
    head = path.read_bytes()[:16]
    checked_by_python = head[4] & 3 != 1
    if source not in sources or not checked_by_python and head[8:] != importlib.util.source_hash(source.read_bytes()):
        print("not of its source:", path)
for source in sources - set(compiled.values()):
    print("without byte code:", source)
print(*folder.rglob("*.pyc.*"), sep="")
"""


@pytest.fixture(scope="session")
def shipped(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Return the package under test."""
    return describe(package, tmp_path_factory.mktemp("shipped") / "tree")


@pytest.fixture(scope="session")
def newer(package: Path, installed: Service, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """Return another version of the package, also on the machine."""
    made = changed(package, "9.0-1", tmp_path_factory.mktemp("newer"))
    installed.machine.put(f"{KEPT}/newer/{made.path.name}", made.path.read_bytes())
    return made


def dpkg(service: Service, arguments: str) -> str:
    """Run dpkg and return its output."""
    return service.machine.run(f"dpkg {arguments}", 300)


def quiet(output: str) -> bool:
    """Return whether dpkg and the maintainer scripts print no warning, apart from dpkg's warning of a downgrade."""
    lines = [line for line in output.splitlines() if "warning: downgrading" not in line]
    return not any(
        word in line.lower() for line in lines for word in ("traceback", "warning", "error", "cannot", "fail")
    )


def byte_code(service: Service) -> str:
    """Return the faults in the byte code of the program that the next start runs."""
    program = service.machine.run(f"readlink -f {OPT}/current").strip()
    command = f"{program}/bin/python3 -IB -c {shlex.quote(_BYTE_CODE)} {program}/lib"
    return service.machine.run(command).strip()


def running(service: Service) -> str:
    """Return the folder of the running program; "" while it restarts."""
    done = service.machine.try_run(f"tr '\\0' '\\n' < /proc/{service.main_pid()}/cmdline")
    return done.output.partition("/bin/python3")[0].strip() if done.status == 0 else ""


def runs_version(service: Service, version: str) -> bool:
    """Return whether the running program has a version; each copy but the first has a suffix."""
    return re.fullmatch(rf"{OPT}/versions/{re.escape(version)}(\.\w+)?", running(service)) is not None


def runs_whole(service: Service, *packages: Package) -> bool:
    """Return whether the running program has all files of one of the packages."""
    assert wait_until(lambda: running(service) != "", 30 * service.patience)
    program = running(service)
    for package in packages:
        service.machine.put(f"{KEPT}/sums", package.sums.encode())
        if service.machine.try_run(f"cd {program} && md5sum --quiet -c {KEPT}/sums").status == 0:
            return True
    return False


def test_dpkg_prints_no_warning_and_every_source_is_compiled(
    service: Service, shipped: Package, newer: Package
) -> None:
    old, new = f"{KEPT}/{shipped.path.name}", f"{KEPT}/newer/{newer.path.name}"
    for arguments in (f"-i {new}", f"-i {old}", "--remove edge-serve", f"-i {old}", "--purge edge-serve", f"-i {old}"):
        output = dpkg(service, arguments)
        assert quiet(output), f"dpkg {arguments}:\n{output}"
        if arguments.startswith("-i"):
            assert byte_code(service) == ""
            assert wait_until(lambda: service.machine.run(f"ls {OPT}/versions | wc -l").strip() == "1", 30), (
                "only one stays"
            )
        else:
            assert service.machine.try_run(f"test -e {OPT}").status == 1, "nothing of the program is left"
    service.machine.run("systemctl start edge-serve")
    assert service.infer() == 200


@pytest.mark.slow
def test_upgrade_without_byte_code_runs_the_new_program(service: Service, shipped: Package, newer: Package) -> None:
    """Check that no step leaves the old program running while dpkg reports the new one as installed."""
    module = service.machine.run("python3 -c 'import compileall; print(compileall.__file__)'").strip()
    service.machine.run(f"mv {module} {module}.away; echo 'raise SystemExit(1)' > {module}")
    try:
        output = dpkg(service, f"-i {KEPT}/newer/{newer.path.name}")
    finally:
        service.machine.run(f"mv {module}.away {module}")
    service.recovered_in("simple", 30)

    assert "byte code could not be compiled" in output
    assert "9.0-1" in service.machine.run(
        f"{OPT}/current/bin/python3 -IB -c 'import edge_serve; print(edge_serve.__version__)'"
    )
    assert wait_until(lambda: runs_version(service, "9.0-1"), 30 * service.patience)
    assert "not of its source" not in byte_code(service)
    dpkg(service, f"-i {KEPT}/{shipped.path.name}")


#: steps of an upgrade, and a condition of the machine's shell that becomes true while dpkg is in that step
STEPS = {
    "preinst": "test -e /var/lib/dpkg/tmp.ci/control",
    "unpacking": f"find {OPT}/package -name '*.dpkg-new' -print -quit | grep -q .",
    "renaming": f"find {OPT}/package -name '*.py' -cnewer {KEPT}/mark -print -quit | grep -q .",
    "copying": f"find {OPT}/versions -mindepth 1 -maxdepth 1 -cnewer {KEPT}/mark | grep -q .",
    "compiling": f"find {OPT}/versions/*/lib -name '*.pyc' -cnewer {KEPT}/mark -print -quit | grep -q .",
    "activated": f"find {OPT}/current -cnewer {KEPT}/mark | grep -q .",
}

_KILL_WHEN = """\
touch {mark}; sleep 0.05
systemd-run --quiet --unit=upgrade dpkg -i {path}
while systemctl --quiet is-active upgrade; do if {condition}; then break; fi; done
systemctl kill --signal=KILL upgrade
while systemctl --quiet is-active upgrade; do sleep 0.1; done
systemctl reset-failed upgrade
"""


#: the step in which every run kills an upgrade: half of its files are renamed
_OFTEN = "renaming"


@pytest.mark.parametrize(
    "step", [pytest.param(one, marks=() if one == _OFTEN else pytest.mark.slow) for one in (*STEPS, "unpacked")]
)
def test_killed_upgrade_leaves_a_complete_program(
    service: Service, shipped: Package, newer: Package, step: str
) -> None:
    service.add_python_model("echo", models.source("segfaults"))
    service.machine.run("systemctl restart edge-serve", 120)
    here = service.machine.run("dpkg-query -W -f '${Version}' edge-serve")
    other = newer if here == shipped.version else shipped
    path = f"{KEPT}/newer/{other.path.name}" if other is newer else f"{KEPT}/{other.path.name}"

    if step == "unpacked":
        dpkg(service, f"--unpack {path}")
    else:
        service.machine.try_run(_KILL_WHEN.format(mark=f"{KEPT}/mark", path=path, condition=STEPS[step]), 120)

    state = service.machine.run("dpkg-query -W -f '${db:Status-Abbrev} ${Version}' edge-serve")
    assert step == "activated" or state != f"ii  {other.version}", "it came too late to interrupt anything"
    assert service.infer() == 200
    assert runs_whole(service, shipped, newer)
    service.machine.run("pkill -KILL -u edge-serve -f 'edge_serve[.]workers[.]child[.]main'")
    service.recovered_in("echo", 30)  # the running server still finds the files of its workers
    if step == "renaming":
        service.machine.boot.cut()
        service.machine.start()
    else:
        service.machine.run("systemctl restart edge-serve", 120)
    service.recovered_in("echo", 60)
    assert runs_whole(service, shipped, newer)
    assert byte_code(service) == ""

    output = dpkg(service, f"-i {path}")
    assert quiet(output), output
    assert wait_until(lambda: runs_version(service, other.version), 30 * service.patience)
    assert wait_until(lambda: service.machine.run(f"ls {OPT}/versions | wc -l").strip() == "1", 30 * service.patience)
    assert runs_whole(service, other)


@pytest.mark.slow
def test_upgrade_from_the_layout_of_the_first_package(
    service: Service, shipped: Package, package: Path, tmp_path: Path
) -> None:
    """Up to 0.1.0-1 the running program consisted of dpkg's own files."""
    first = before(package, tmp_path)
    service.machine.put(f"{KEPT}/first.deb", first.path.read_bytes())
    assert quiet(dpkg(service, f"-i {KEPT}/first.deb"))
    service.machine.run(
        "systemctl stop edge-serve; systemctl restart edge-serve.socket; systemctl start edge-serve", 120
    )
    assert wait_until(lambda: running(service) == OPT, 30 * service.patience)
    assert service.machine.run(f"ls {OPT}").split() == ["bin", "lib", "pyvenv.cfg"]

    dpkg(service, f"--unpack {KEPT}/{shipped.path.name}")
    service.machine.run("systemctl restart edge-serve", 120)
    assert running(service).startswith(f"{OPT}/versions/before."), "a whole program between unpacking and configuring"
    assert service.infer() == 200
    output = dpkg(service, "--configure edge-serve")
    assert quiet(output), output
    assert wait_until(lambda: runs_version(service, shipped.version), 30 * service.patience)
    assert service.machine.run(f"ls {OPT}").split() == ["bin", "current", "package", "versions"]
    assert runs_whole(service, shipped)
    assert byte_code(service) == ""
    assert wait_until(lambda: service.infer() == 200, 30 * service.patience)
    listening = service.machine.run("ss -Hltnp 'sport = :8000'")
    assert "*:8000" in listening, "as the new unit says"
    assert '"systemd"' in listening, "so a restart keeps what arrives"


@pytest.mark.slow
def test_build_is_reproducible(package: Path, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = os.umask(0o077)
    try:
        again = build(release, "amd64", tmp_path / "again")
    finally:
        os.umask(before)

    assert again.name == package.name
    assert hashlib.sha256(again.read_bytes()).hexdigest() == hashlib.sha256(package.read_bytes()).hexdigest()


def test_package_contains_licences_changes_and_bill_of_materials(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    documents = tmp_path / DOCUMENTS

    licences = (documents / "copyright").read_text()
    for owner in ("OpenBLAS", "GCC runtime library", "Microsoft Corporation", "Cory Benfield", "Google Inc"):
        assert owner in licences, owner
    version = package.name.split("_")[1]
    assert gzip.decompress((documents / "changelog.Debian.gz").read_bytes()).startswith(
        f"edge-serve ({version})".encode()
    )
    bill = json.loads((documents / "sbom.cdx.json").read_text())
    assert check(bill) == []
    installed = {path.name.removesuffix(".dist-info").replace("_", "-") for path in tmp_path.rglob("*.dist-info")}
    told = {f"{part['name']}-{part['version']}".replace("_", "-") for part in bill["components"]}
    assert told == {name for name in installed if not name.startswith("edge-serve-")}
    assert all(len(part["hashes"]) == 1 for part in bill["components"])


def test_every_large_library_of_the_package_is_loaded(service: Service) -> None:
    """Run a model of each backend: the package must not contain large libraries that neither loads."""
    service.add_python_model("echo", models.source("segfaults"))
    service.machine.run("systemctl restart edge-serve", 120)
    service.recovered_in("echo", 60)
    found = service.machine.run(f"find {OPT}/current/ -name '*.so*' -size +1M -printf '%f\\n'").split()
    pids = " ".join(f"/proc/{pid}/maps" for pid in service.workers())
    loaded = service.machine.run(f"cat {pids}")

    assert len(found) >= 3
    of_the_agent = ["_rust.abi3.so"]  # cryptography, with which edge-ota checks signatures
    assert [name for name in found if f"/{name}" not in loaded] == of_the_agent
