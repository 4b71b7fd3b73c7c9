"""Control groups, as far as a folder of plain files can stand for them; `make test-vm` has real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_serve.workers.child.process import OOM_STEP
from edge_serve.workers.launch.cgroups import FRONT, ControlGroup, Groups, find_groups, parse_bytes
from tests.stories import played
from tests.workers.harness import serving


@pytest.mark.parametrize(
    ("text", "expected"), [("1024", 1024), ("2K", 2048), ("512M", 512 << 20), ("2g", 2 << 30), (" 1GB ", 1 << 30)]
)
def test_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5G", "1T", "1" * 20])
def test_a_limit_that_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes, as 2147483648, 2G or 512M"):
        parse_bytes(text)


def tree(folder: Path, controllers: str = "cpu memory pids", inside: str = "/system.slice/edge-serve.service") -> Path:
    """A hierarchy in `folder`/cgroup, and the directory of a process in it."""
    base = folder / "cgroup" / inside.lstrip("/")
    base.mkdir(parents=True)
    for place in (base, base.parent):
        (place / "cgroup.controllers").write_text(controllers)
        (place / "cgroup.procs").write_text("")
    process = folder / "proc"
    process.mkdir()
    (process / "mountinfo").write_text(
        f"24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / {folder}/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    (process / "cgroup").write_text(f"1:name=systemd:/old\n0::{inside}\n")
    return process


@pytest.fixture
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the directory is the owner of the group."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("not_root")
def test_the_front_end_moves_down_and_memory_is_counted_below(tmp_path: Path) -> None:
    groups = find_groups(tree(tmp_path))
    base = tmp_path / "cgroup/system.slice/edge-serve.service"
    assert groups is not None
    assert (base / FRONT / "cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.subtree_control").read_text() == "+memory"

    group = groups.make("a/b:1", 5000)
    group.add(7)
    place = base / "worker-1-a_b_1"
    assert (place / "memory.max").read_text() == "5000"
    assert (place / "memory.oom.group").read_text() == "1"
    assert (place / "cgroup.procs").read_text() == "7"
    assert groups.make("a/b:1", 0) is not group


@pytest.mark.usefixtures("not_root")
def test_a_worker_that_runs_already_moves_down_too(tmp_path: Path) -> None:
    process, base = tree(tmp_path), tmp_path / "cgroup/system.slice/edge-serve.service"
    (base / "cgroup.procs").write_text("7\n")
    assert find_groups(process) is not None
    assert (base / FRONT / "cgroup.procs").read_text() == "7", "the last that was moved"


@pytest.mark.usefixtures("not_root")
def test_a_unit_that_has_put_us_below_already(tmp_path: Path) -> None:
    assert find_groups(tree(tmp_path, inside=f"/service/{FRONT}")) is not None
    assert (tmp_path / "cgroup/service/cgroup.subtree_control").exists()


@pytest.mark.usefixtures("not_root")
def test_without_a_group_that_can_be_divided_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_groups(tree(tmp_path / "a", controllers="cpu")) is None
    assert find_groups(tmp_path / "nowhere") is None
    process = tree(tmp_path / "c")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert find_groups(process) is None


def test_root_divides_only_what_systemd_has_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    process = tree(tmp_path)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"0")
    assert find_groups(process) is None
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1")
    assert find_groups(process) is not None


def test_processes_left_in_a_group_are_killed(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "worker")
    group.kill()
    group.add(7)
    group.kill()
    assert not (tmp_path / "worker/cgroup.kill").exists(), "a kernel that cannot"
    (tmp_path / "worker/cgroup.kill").touch()
    group.kill()
    assert (tmp_path / "worker/cgroup.kill").read_text() == "1"


@pytest.mark.parametrize(
    ("events", "limit", "expected"),
    [
        ("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n", 5000, "reached its limit of 5000 bytes of memory"),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n", 5000, "was killed because memory ran out"),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n", 0, "was killed because memory ran out"),
        ("low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", 5000, ""),
        ("", 5000, ""),
    ],
)
def test_the_verdict(tmp_path: Path, events: str, limit: int, expected: str) -> None:
    group = ControlGroup(tmp_path / "worker", limit)
    assert group.verdict() == "", "there is no group"
    group.add(7)
    (tmp_path / "worker/memory.events").write_text(events)
    found = group.verdict()
    assert expected in found
    assert bool(found) is bool(expected)


@played
async def test_a_worker_that_dies_for_want_of_memory_is_named_as_such(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        first.workers.control_groups = Groups(tmp_path)
        worker = first.model._placed[0].worker
        worker._group = first.workers._group_maker(5000)
        os.kill(first.model.pids()[0], 9)
        await first.listener.lost()
        await first.listener.back()
        (place,) = tmp_path.glob("worker-*")
        pid = first.model.pids()[0]
        assert (place / "cgroup.procs").read_text() == str(pid)
        (place / "memory.events").write_text("oom 1\noom_kill 1\n")
        os.kill(pid, 9)
        error = await first.listener.lost()
        assert "was killed because it reached its limit of 5000 bytes of memory" in error.message
        assert "reached its limit of 5000 bytes of memory" in first.model.trouble()
        await first.listener.back()


@played
async def test_a_worker_is_chosen_before_the_front_end_when_memory_runs_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        ours = int(Path("/proc/self/oom_score_adj").read_text())
        theirs = int(Path(f"/proc/{served.model.pids()[0]}/oom_score_adj").read_text())
        assert theirs == min(1000, ours + OOM_STEP)
        assert served.model.trouble() == ""
