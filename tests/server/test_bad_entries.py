"""Whatever a repository holds, the server starts, polls, lists it and stops; one bad entry costs that entry."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edge_serve.models.repository.names import shown
from edge_serve.supervision.crash_loop import LeftOut, Record, StartPhase, as_text
from edge_serve.supervision.safe_mode import FILE
from tests.server.bad_entries import (
    WITHOUT_OVERRIDE,
    bad_kinds,
    bad_links,
    many_files,
    silent_file_system,
    silent_file_systems,
    unreadable,
)
from tests.server.running import PATIENCE, Running, python_model, running

ALL = {
    "none": ("--model-control-mode=none",),
    "poll": ("--model-control-mode=poll", "--repository-poll-secs=1"),
    "explicit": ("--model-control-mode=explicit", "--load-model=*"),
}
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a good model, one elsewhere behind a link, and one with bad links inside."""
    root = tmp_path / "models"
    python_model(root, "good")
    python_model(tmp_path / "releases", "17")
    (tmp_path / "releases/17/config.pbtxt").write_text((root / "good/config.pbtxt").read_text() + '\nname: "linked"\n')
    (root / "linked").symlink_to("../releases/17")
    inside = python_model(root, "links_inside")
    for number, target in enumerate(["/", "/proc/self", "/sys", "..", ".", "link5", "/etc/hostname/x"]):
        (inside / "1" / f"link{number}").symlink_to(target)
    (inside / "2").symlink_to("2")
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with a good model."""
    root = tmp_path / "models"
    python_model(root, "good")
    return root


def index(server: Running) -> dict[str, dict[str, Any]]:
    status, answer = server.post("/v2/repository/index")
    assert status == 200, answer
    return {entry["name"]: entry for entry in json.loads(answer)}


def check(server: Running, bad: Mapping[str, str]) -> None:
    """The good models serve, the bad ones have a reason, and each has one line in the log."""
    entries = index(server)
    for name in ("good", "linked", "links_inside"):
        assert entries[name]["state"] == "READY", entries[name]
        assert server.add_sub(name)[0] == 200
    for name, reason in bad.items():
        assert entries[name].get("state") == "UNAVAILABLE", (entries[name], server.log())
        assert re.search(reason, entries[name]["reason"]), entries[name]
        lines = [line for line in server.log().splitlines() if f"model {shown(name)} is left out" in line]
        assert len(lines) == 1, lines
    assert entries.keys() - {"new"} == {"good", "linked", "links_inside", *bad}


def finds_what_is_new(server: Running, root: Path) -> None:
    python_model(root, "new")
    server.wait_for_log("model new version 1 ready")
    assert server.add_sub("new")[0] == 200
    shutil.rmtree(root / "new")
    server.wait_for_log("model new version 1 unloaded")


def test_names_that_do_not_fit_and_long_configurations_cannot_be_loaded(small: Path) -> None:
    with running(f"--model-repository={small}", *ALL["explicit"]) as server:
        body = {"parameters": {"config": json.dumps({"backend": "python"}), "file:1/model.py": "eA=="}}
        for path in (".", "%2e", "a%0Ab", "%E2%80%AEm"):
            status, answer = server.post(f"/v2/repository/models/{path}/load", body)
            assert (status, "must not contain" in answer.decode()) == (400, True), answer
        body = {"parameters": {"config": json.dumps({"backend": "x" * (1 << 20)})}}
        status, answer = server.post("/v2/repository/models/good/load", body)
        assert (status, "expected at most 1048576" in answer.decode()) == (400, True), answer


def test_a_model_may_have_version_zero_but_none_with_leading_zeros(tmp_path: Path) -> None:
    """As Triton 2.51, which was asked."""
    python_model(tmp_path, "zero", version=0)
    python_model(tmp_path, "zeros").joinpath("1").rename(tmp_path / "zeros" / "00")
    with running(f"--model-repository={tmp_path}", "--exit-on-error=false") as server:
        server.wait_for_log("at least one version must be available under the version policy of model 'zeros'")
        status, answer = server.add_sub("zero")
        assert (status, answer["model_version"]) == (200, "0")


def stops(server: Running) -> None:
    began = time.monotonic()
    assert server.stop() == 0, server.log()
    assert time.monotonic() - began < 15


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("mode", ALL)
def test_a_server_starts_polls_and_stops_with_bad_entries(root: Path, tmp_path: Path, mode: str) -> None:
    bad = {**bad_links(root), **bad_kinds(root), **unreadable(root, tmp_path / "elsewhere")}
    with running(f"--model-repository={root}", *ALL[mode], prefix=WITHOUT_OVERRIDE) as server:
        check(server, bad)
        if mode == "poll":
            finds_what_is_new(server, root)
            check(server, bad)
        stops(server)


@pytest.mark.slow
def test_an_entry_that_becomes_readable_is_loaded(small: Path) -> None:
    (small / "later").symlink_to("later")
    with running(f"--model-repository={small}", *ALL["poll"]) as server:
        assert index(server)["later"]["state"] == "UNAVAILABLE"
        (small / "later").unlink()
        python_model(small, "later")
        server.wait_for_log("model later version 1 ready")
        assert index(server)["later"]["state"] == "READY"


@pytest.mark.slow
@needs_root
def test_a_file_that_becomes_readable_is_a_change(small: Path) -> None:
    (small / "good/config.pbtxt").chmod(0)
    with running(f"--model-repository={small}", *ALL["poll"], prefix=WITHOUT_OVERRIDE) as server:
        assert "Permission denied" in index(server)["good"]["reason"]
        (small / "good/config.pbtxt").chmod(0o644)
        server.wait_for_log("model good version 1 ready")


@pytest.mark.slow
@needs_root
def test_a_model_that_cannot_be_read_for_a_while_keeps_serving(small: Path) -> None:
    with running(f"--model-repository={small}", *ALL["poll"], prefix=WITHOUT_OVERRIDE) as server:
        (small / "good").chmod(0)
        server.wait_for_log("model good is left out: cannot be read: Permission denied")
        time.sleep(2.5)
        assert server.add_sub("good")[0] == 200
        (small / "good").chmod(0o755)
        server.wait_for_log("model good can be read again")
        assert server.add_sub("good")[0] == 200
        assert "model good is gone" not in server.log()


@needs_root
@pytest.mark.slow  # half a minute each: the server waits ten seconds for such an entry
@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_a_file_system_that_does_not_answer_costs_its_entries(root: Path, tmp_path: Path, mode: str) -> None:
    mount, inner = tmp_path / "mount", root / "mounted"
    mount.mkdir()
    inner.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(silent_file_system(mount))
            stack.enter_context(silent_file_system(inner))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        for number in range(3):
            (root / f"dead{number}").symlink_to(mount / str(number))
        bad = dict.fromkeys(["mounted", *(f"dead{number}" for number in range(3))], "does not answer")
        server = stack.enter_context(running(f"--model-repository={root}", *ALL[mode], ready=False))
        server.wait_for_log(r"edge-serve \S+ ready in", 3 * PATIENCE)
        check(server, bad)
        if mode == "poll":
            finds_what_is_new(server, root)
        stops(server)


@needs_root
@pytest.mark.slow  # half a minute: the server waits ten seconds for such an entry
@pytest.mark.timeout(150)
def test_safe_mode_reads_entries_that_do_not_answer_beside_each_other(root: Path, tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record = Record(boot, StartPhase.ENDED, left_out={"linked": LeftOut("another fingerprint", "it died")})
    (tmp_path / FILE).write_text(as_text(record))
    mounts = [root / f"mounted{number}" for number in range(4)]
    flags = (f"--model-repository={root}", f"--state-directory={tmp_path}", *ALL["poll"])
    began = time.monotonic()
    with silent_file_systems(mounts), running(*flags, ready=False) as server:
        assert server.get("/v2/health/live")[0] == 200
        assert time.monotonic() - began < 10  # the doors are open meanwhile
        server.wait_for_log(r"edge-serve \S+ ready in", 2 * PATIENCE)
        assert time.monotonic() - began < 35  # one after the other took 40 s before the first model
        check(server, dict.fromkeys([mount.name for mount in mounts], "does not answer"))
        stops(server)


@needs_root
@pytest.mark.slow  # the command waits ten seconds for all such entries
@pytest.mark.timeout(100)
def test_check_names_the_entries_that_do_not_answer(root: Path) -> None:
    mounts = [root / f"mounted{number}" for number in range(3)]
    with silent_file_systems(mounts):
        (root / "linked_dead").symlink_to(mounts[0] / "model")
        command = [sys.executable, "-m", "edge_serve", "check", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1, done.stderr
    for name in ("linked_dead", *(mount.name for mount in mounts)):
        assert re.search(rf"^FAILED +{name} .*\n +does not answer", done.stdout, re.MULTILINE), done.stdout
    assert "3 of 7 models can be served" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_with_many_files_serves_and_one_with_too_many_is_left_out(root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="edge-serve-test-", dir="/dev/shm") as memory:  # a disk takes minutes
        for name, count in {"many": 10_000, "too_many": 100_000}.items():
            many_files(python_model(Path(memory), name) / "data", count)
            (root / name).symlink_to(Path(memory, name))
        with running(f"--model-repository={root}", *ALL["poll"]) as server:
            entries = index(server)
            assert entries["many"]["state"] == "READY"
            # a busy machine comes to the limit of time first
            reason = "holds more than 100000 files and directories|could not be looked through within 8 s"
            assert re.fullmatch(reason, entries["too_many"]["reason"])
            finds_what_is_new(server, root)
            stops(server)
