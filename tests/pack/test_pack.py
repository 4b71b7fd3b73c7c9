"""`edge-serve pack`: packs are installed from files and wheels with hashes, listed, replaced, and removed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edge_serve.backends.packs import INTERFACE, find_pack
from edge_serve.doctor.packs import examine_packs
from edge_serve.pack.command import run
from tests.backends.test_packs import make_pack
from tests.server.running import PATIENCE

BACKEND = "import tiny_library\nfrom .part import NAME\n\nclass Backend:\n    library = tiny_library.VERSION\n"


def make_wheel(folder: Path, version: str = "1") -> str:
    """Write a wheel with a library, and a path to the NumPy of these tests; its line in a file of requirements."""
    path = folder / f"tiny_library-{version}-py3-none-any.whl"
    information = f"tiny_library-{version}.dist-info"
    files = {
        "tiny_library.py": f"VERSION = {version!r}\n",
        "tests_numpy.pth": f"{Path(np.__file__).parents[1]}\n",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: tiny-library\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{information}/RECORD", "".join(f"{name},,\n" for name in files))
    return f"tiny-library=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def make_source(root: Path, requirements: str = "", source: str = BACKEND) -> Path:
    """Write the files of the pack `own`."""
    directory = make_pack(root, source=source)
    if requirements:
        (directory / "requirements.txt").write_text(requirements)
    return directory


def make_hostile(folder: Path) -> Path:
    """Make a directory with modules of the names that an installation runs. Each of them fails."""
    folder.mkdir()
    for name in ("venv", "ensurepip", "pip", "encodings", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit(f'{__file__} ran')\n")
    return folder


def pack(root: Path, *arguments: str) -> int:
    return run([*arguments, f"--backend-directory={root}"])


@pytest.mark.slow  # makes two virtual environments with pip
@pytest.mark.timeout(240)
def test_a_pack_is_installed_replaced_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_hostile(tmp_path / "current"))
    root, wheels = tmp_path / "backends", tmp_path / "wheels"
    source = make_source(tmp_path / "sources", make_wheel(wheels))
    assert pack(root, "install", "own", f"--from={source}", f"--wheels={wheels}") == 0
    found = find_pack(root, "own")
    assert found is not None
    assert found.environment == (root / "own/venv").resolve()
    manifest = json.loads((root / "own/pack.json").read_text())
    assert (manifest["name"], manifest["architectures"]) == ("own", [platform.machine()])
    assert manifest["interface"] == INTERFACE
    assert not (root / "own/requirements.txt").exists()
    assert not list(root.glob("own/venv/lib/python*/site-packages/pip"))
    assert [path.name for path in root.iterdir() if not path.name.startswith(".own-")] == ["own"]
    assert len(list(root.iterdir())) == 2

    state = found.state
    (source / "part.py").write_text("NAME = 1 / 0\n")
    capfd.readouterr()
    assert pack(root, "install", "own", f"--from={source}", f"--wheels={wheels}") == 1
    assert "pack 'own' does not work here: " in (said := capfd.readouterr().err)
    assert "ZeroDivisionError" in said
    again = find_pack(root, "own")  # the old one is as it was
    assert again is not None
    assert again.state == state

    capfd.readouterr()
    assert pack(root, "list", "--json") == 0
    (listed,) = json.loads(capfd.readouterr().out)["packs"]
    assert (listed["name"], listed["python"], listed["fault"]) == (
        "own",
        f"{sys.version_info.major}.{sys.version_info.minor}",
        "",
    )
    assert pack(root, "remove", "own") == 0
    assert list(root.iterdir()) == []


@pytest.mark.slow  # makes a virtual environment with pip
@pytest.mark.timeout(240)
def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root, wheels = tmp_path / "backends", tmp_path / "wheels"
    line = make_wheel(wheels)
    with (wheels / "tiny_library-1-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"more")
    source = make_source(tmp_path / "sources", line)
    assert pack(root, "install", "own", f"--from={source}", f"--wheels={wheels}") == 1
    assert "pip install failed with status 1: see its message above" in capfd.readouterr().err
    assert list(root.iterdir()) == []


def test_a_pack_without_requirements_has_no_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "sources", source="class Backend: pass\n")
    assert pack(tmp_path / "backends", "install", "own", f"--from={source}") == 0
    found = find_pack(tmp_path / "backends", "own")
    assert found is not None
    assert found.environment is None
    assert pack(tmp_path / "backends", "list") == 0
    assert "ok  own " in capfd.readouterr().out


def test_files_of_the_pack_are_installed_whatever_their_names(tmp_path: Path) -> None:
    source, root = make_source(tmp_path / "sources", source="class Backend: pass\n"), tmp_path / "backends"
    own = {"requirements.py", "requirements_of_the_model/a.txt", "data/requirements.txt", "data/pack.json", "a/venv/b"}
    for name in (*own, "pack.json", "requirements-2.7.in", "venv/a", "data/__pycache__/a.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("of the source")
    assert pack(root, "install", "own", f"--from={source}") == 0
    installed = root / "own"
    copied = {path for path in installed.rglob("*") if path.is_file() and path.read_text() == "of the source"}
    assert {str(path.relative_to(installed)) for path in copied} == own


def test_the_service_may_read_a_pack_whatever_umask_installed_it(tmp_path: Path) -> None:
    old = os.umask(0o077)  # also of a checkout
    try:
        source = make_source(tmp_path / "sources", source="class Backend: pass\n")
        (source / "part").mkdir()
        (source / "part/tool").touch(0o777)
        assert pack(tmp_path / "backends", "install", "own", f"--from={source}") == 0
    finally:
        os.umask(old)
    places = [tmp_path / "backends", *(tmp_path / "backends").rglob("*")]
    assert {oct(path.stat().st_mode & 0o055) for path in places} <= {"0o55", "0o44"}
    modes = [(tmp_path / "backends/own" / name).stat().st_mode & 0o777 for name in ("backend.py", "part/tool")]
    assert modes == [0o644, 0o755]


def test_a_directory_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    source, root = make_source(tmp_path / "sources", source="class Backend: pass\n"), tmp_path / "backends"
    root.mkdir(mode=0o700)
    assert pack(root, "install", "own", f"--from={source}") == 0
    assert root.stat().st_mode & 0o777 == 0o700


def test_links_to_other_directories_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, root = make_source(tmp_path / "sources", source="class Backend: pass\n"), tmp_path / "backends"
    for folder in (root, tmp_path / "other", tmp_path / ".own-1/own"):
        folder.mkdir(parents=True)
    for target in ("../other", "../.own-1/own"):
        (root / "own").symlink_to(target)
        assert pack(root, "remove", "own") == 1
        assert "there is no pack 'own' in" in capfd.readouterr().err
        assert pack(root, "install", "own", f"--from={source}") == 1
        assert f"'{root / 'own'}' is no pack of edge-serve" in capfd.readouterr().err
        assert os.readlink(root / "own") == target
        (root / "own").unlink()
    (root / "own").symlink_to(source)  # a pack that was made by hand
    assert pack(root, "remove", "own") == 0
    assert source.is_dir()


def test_a_link_to_a_version_that_is_gone_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(".own-1/own")
    assert pack(tmp_path, "remove", "own") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_pack_is_not_copied_into_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "sources", source="class Backend: pass\n")
    before = sorted(source.rglob("*"))
    assert pack(source / "backends", "install", "own", f"--from={source}") == 1
    assert f"'{source}/backends' is inside '{source}'" in capfd.readouterr().err
    assert sorted(source.rglob("*")) == before


def test_a_file_that_cannot_be_copied_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "sources", source="class Backend: pass\n")
    for name in ("first", "second"):
        (source / name).symlink_to("nowhere")
    assert pack(tmp_path / "backends", "install", "own", f"--from={source}") == 1
    said = capfd.readouterr().err
    assert said.startswith(
        f"edge-serve: the files of '{source}' cannot be copied: [Errno 2] No such file or directory: '"
    )
    assert said.count("\n") == 1
    assert list((tmp_path / "backends").iterdir()) == []


@pytest.mark.parametrize("action", ["list", "install", "remove"])
def test_a_backend_directory_that_is_a_file(tmp_path: Path, action: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "sources", source="class Backend: pass\n")
    (tmp_path / "file").touch()
    assert pack(tmp_path / "file", action, "own", f"--from={source}") == 1
    assert f"'{tmp_path}/file' is not a directory: name that of the packs" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("install", "nothing"),
            "found no files for pack 'nothing': the packs of edge-serve are fil, openvino, pytorch",
        ),
        (("install", "own", "--from=/nowhere"), "'/nowhere' has no backend.py and no model.py"),
        (("remove", "own"), "there is no pack 'own' in"),
        (("remove", ".."), "there is no pack '..' in"),
        (("remove", "../models"), "there is no pack '../models' in"),
        (("install", "own/", "--from={source}"), "'own/' cannot be the name of a pack: use letters, digits"),
        (("install", "python", "--from={source}"), "no pack can have the name 'python': edge-serve has a backend"),
    ],
)
def test_what_cannot_be_done_says_why(
    tmp_path: Path, arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source, root = make_source(tmp_path / "sources", source="class Backend: pass\n"), tmp_path / "backends"
    for folder in (root, tmp_path / "models"):
        folder.mkdir()
    assert pack(root, *(one.format(source=source) for one in arguments)) == 1
    assert said in capfd.readouterr().err
    assert list(root.iterdir()) == []
    assert (tmp_path / "models").is_dir()


def test_an_installed_edge_serve_names_the_files_of_a_checkout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("backends.packs", "pack.install"):
        monkeypatch.setattr(f"edge_serve.{module}.SOURCES", tmp_path / "site-packages/packs")
    monkeypatch.chdir(tmp_path)
    assert pack(tmp_path / "backends", "list") == 0
    assert "edge-serve pack install fil --from CHECKOUT/packs/fil" in capfd.readouterr().out
    assert pack(tmp_path / "backends", "install", "fil") == 1
    assert "edge-serve pack install fil --from CHECKOUT/packs/fil\n" in capfd.readouterr().err
    make_pack(tmp_path / "packs", "fil")
    assert pack(tmp_path / "backends", "install", "fil") == 1
    assert f"edge-serve pack install fil --from {tmp_path}/packs/fil\n" in capfd.readouterr().err


@pytest.mark.parametrize("others", [(), ("model.py",)], ids=["C++ alone", "and Python, as for PyTorch"])
def test_a_backend_of_triton_stays(tmp_path: Path, others: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    source, root = make_source(tmp_path / "sources", source="class Backend: pass\n"), tmp_path / "backends"
    directory = root / "own"
    directory.mkdir(parents=True)
    files = {directory / name for name in ("libtriton_own.so", *others)}
    for file in files:
        file.touch()
    assert pack(root, "install", "own", f"--from={source}") == 1
    assert f"'{directory}' is no pack of edge-serve, and installing would delete it" in capfd.readouterr().err
    assert pack(root, "remove", "own") == 1
    assert "there is no pack 'own' in" in capfd.readouterr().err
    assert set(root.rglob("*")) == {directory, *files}


def test_a_step_that_takes_too_long_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, python = make_source(tmp_path / "sources", "x==1 --hash=sha256:0\n"), tmp_path / "python"
    python.write_text("#!/bin/sh\ncase $2 in -c) echo 3.11;; *) exec sleep 60;; esac\n")
    python.chmod(0o755)
    monkeypatch.setattr("edge_serve.pack.step.LIMIT_SECONDS", 0.2)
    assert pack(tmp_path / "backends", "install", "own", f"--from={source}", f"--python={python}") == 1
    assert "took longer than 0.2 s: download the wheels first" in capfd.readouterr().err
    assert list((tmp_path / "backends").iterdir()) == []


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_step_ends_with_the_command_without_a_traceback(tmp_path: Path, sent: int, status: int) -> None:
    source, python = make_source(tmp_path / "sources", "x==1 --hash=sha256:0\n"), tmp_path / "python"
    started = tmp_path / "started"
    os.mkfifo(started)
    python.write_text(f"#!/bin/sh\ncase $2 in -c) echo 3.11;; *) sleep 60 & echo $! > {started}; wait;; esac\n")
    python.chmod(0o755)
    arguments = ["pack", "install", "own", f"--from={source}", f"--python={python}", f"--backend-directory={tmp_path}"]
    command = subprocess.Popen([sys.executable, "-m", "edge_serve", *arguments], stderr=subprocess.PIPE, text=True)
    (grandchild,) = started.read_text().split()
    handle = os.pidfd_open(int(grandchild))
    try:
        command.send_signal(sent)
        printed = command.communicate(timeout=PATIENCE)[1]  # the grandchild has the pipe, too
        assert select.select([handle], [], [], PATIENCE)[0]
    finally:
        os.close(handle)

    assert (command.returncode, printed) == (status, "")
    left = list(tmp_path.glob(".own-*"))
    assert bool(left) == (sent == signal.SIGKILL)
    if left:
        assert pack(tmp_path, "remove", "own") == 0
        assert not list(tmp_path.glob(".own-*"))


def test_a_python_without_wheels_says_which_have_some(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "sources")
    (source / "requirements-2.7.txt").write_text("x==1 --hash=sha256:0\n")
    assert pack(tmp_path / "backends", "install", "own", f"--from={source}") == 1
    assert "pack 'own' has libraries for 2.7, expected some for Python 3." in capfd.readouterr().err
    assert pack(tmp_path / "backends", "install", "own", f"--from={source}", "--python=/nowhere/python") == 1
    assert "--python /nowhere/python does not run" in capfd.readouterr().err


def test_wrong_use_has_status_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (("install",), ("upgrade", "own"), ()):
        with pytest.raises(SystemExit) as ended:
            pack(tmp_path, *arguments)
        assert ended.value.code == 2
    assert "the following arguments are required: list|install|remove" in capfd.readouterr().err


def test_broken_packs_are_listed_with_their_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (make_pack(tmp_path, "openvino") / "venv").mkdir()
    foreign = make_pack(tmp_path, "good")
    (foreign / "pack.json").write_text(json.dumps({"version": "1\x1b[2J\nok  bad"}))
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch/libtriton_pytorch.so").touch()
    assert pack(tmp_path, "list") == 1
    out = capfd.readouterr().out
    assert "!!  openvino     pack 'openvino' in" in out
    assert "ok  good         1\\x1b[2J\\nok  bad, the server's Python\n" in out
    assert "pytorch" not in out
    findings = list(examine_packs(tmp_path))
    assert [finding.good for finding in findings] == [True, False]
    (none,) = examine_packs(tmp_path / "absent")
    assert (none.good, none.advice) == (None, "edge-serve pack install openvino (docs/packs.md)")


def test_a_list_that_cannot_be_written_has_the_status_of_lost_output(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-u", "-m", "edge_serve", "pack", "list", f"--backend-directory={tmp_path}"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (74, "edge-serve: cannot write the output: No space left on device\n")
