"""Which paths a worker is allowed; tests/server/test_hostile_model.py tries the kernel."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edge_serve.workers.launch import landlock
from tests.processes import started_here
from tests.server.bad_entries import silent_file_systems

#: a right that an entry has when it is not closed, and the one that what is readable has
_ALL, _READ = landlock._RIGHTS, landlock._READ_FILE


def allowed(path: Path, **rules: list[Path]) -> int:
    """The rights that rules give to a path: those of all places that it lies below."""
    given = {kind: [str(place) for place in places] for kind, places in rules.items()}
    real = path.resolve()
    found = 0
    for place, rights in landlock.grants(given):
        if real.is_relative_to(place):
            found |= rights
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("models/a/1", "models/b/1", "models/common", "state/kept", "keys", "data"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("models/a/config.pbtxt", "models/b/1/model.py", "models/common/labels", "state/crashes.json",
                 "keys/server.key", "keys/server.pem", "data/file", "file"):  # fmt: skip
        (tmp_path / name).touch()
    return tmp_path


def test_nothing_closed_is_everything_open(tree: Path) -> None:
    assert allowed(tree / "data/file") == _ALL


def test_a_closed_file_closes_nothing_but_itself(tree: Path) -> None:
    closed = [tree / "keys/server.key", tree / "keys/not-there-yet"]

    assert allowed(tree / "keys/server.key", closed=closed) == 0
    assert allowed(tree / "keys/server.pem", closed=closed) == _ALL
    assert allowed(tree / "data/file", closed=closed) == _ALL
    assert allowed(Path("/usr"), closed=closed) == _ALL


def test_new_files_on_the_path_of_a_closed_place_are_closed(tree: Path) -> None:
    rules = {"closed": [str(tree / "keys/not-there-yet")]}
    before = dict(landlock.grants(rules))
    (tree / "keys/not-there-yet").touch()

    assert str(tree / "keys") not in before
    assert str(tree / "keys/not-there-yet") not in before


def test_models_of_a_repository_are_closed_but_ones_own(tree: Path) -> None:
    repositories, own = [tree / "models"], [tree / "models/a"]

    def rights(name: str) -> int:
        return allowed(tree / "models" / name, repositories=repositories, own=own)

    assert rights("a/config.pbtxt") == _ALL
    assert rights("b/1/model.py") == 0
    assert rights("common/labels") == _ALL
    (tree / "models/c/1").mkdir(parents=True)
    assert rights("c") == 0
    assert rights("") == 0, "nothing is made there"


def test_a_link_of_ones_own_model_into_the_repository_can_be_read(tree: Path) -> None:
    (tree / "models/a/2").symlink_to("../b/1")
    (tree / "models/a/key").symlink_to(tree / "keys/server.key")
    rules = {"repositories": [tree / "models"], "own": [tree / "models/a"], "closed": [tree / "keys/server.key"]}

    assert allowed(tree / "models/a/2/model.py", **rules) == _READ
    assert allowed(tree / "models/a/key", **rules) == 0


def test_a_link_to_a_closed_place_opens_nothing(tree: Path) -> None:
    (tree / "way").symlink_to(tree / "keys")
    (tree / "models/linked").symlink_to(tree / "data")
    (tree / "data/1").mkdir()

    assert allowed(tree / "way/server.key", closed=[tree / "keys/server.key"]) == 0
    assert allowed(tree / "data/file", repositories=[tree / "models"]) == 0, "it is a model's directory"


def test_files_of_the_state_are_closed_and_its_directories_are_not(tree: Path) -> None:
    assert allowed(tree / "state/crashes.json", listed=[tree / "state"]) == 0
    assert allowed(tree / "state/kept", listed=[tree / "state"]) == _ALL


def test_an_open_place_is_open_with_all_below_it(tree: Path) -> None:
    assert allowed(tree / "keys/server.key", closed=[tree / "keys/server.key"], open=[tree]) == _ALL


def test_an_environment_below_a_closed_cache_can_be_read(tree: Path) -> None:
    rules = {"closed": [tree / "data"], "readable": [tree / "data/file"]}

    assert allowed(tree / "data/file", **rules) == _READ
    assert allowed(tree / "data", **rules) == 0


def test_a_process_without_the_mark_is_no_worker() -> None:
    assert not landlock.is_marked(os.getpid())
    assert not landlock.is_marked(1)


def test_the_mark_is_for_good_and_for_children() -> None:
    code = (
        "import os, sys; from edge_serve.workers.launch import landlock; landlock.mark()\n"
        "child = os.fork() or (os.setsid(), sys.stdin.read(), os._exit(0))\n"
        "print(landlock.is_marked(os.getpid()), landlock.is_marked(child))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)

    assert done.stdout.split() == ["True", "True"], done.stderr


def test_no_other_program_uses_the_limit_that_is_the_mark() -> None:
    assert resource.getrlimit(landlock._RLIMIT_LOCKS)[1] == resource.RLIM_INFINITY


def test_a_process_that_has_ended_counts_as_marked() -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert landlock.is_marked(child.pid)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_file_systems_that_do_not_answer_hold_no_worker_up(tree: Path) -> None:
    """Mounted beside a closed file, in the repository, and behind links of other models."""
    dead = [tree / "keys/dead disk", tree / "models/mounted"]
    before = started_here()
    with silent_file_systems(dead):
        (tree / "models/linked").symlink_to(dead[0] / "model")
        (tree / "models/b/config.pbtxt").symlink_to(dead[0] / "config.pbtxt")
        rules = {
            "closed": [str(tree / "keys/server.key"), str(dead[0] / "key")],
            "repositories": [str(tree / "models"), str(dead[0] / "models")],
            "own": [str(tree / "models/a")],
            "open": [str(dead[0] / "home")],
        }
        given = dict(landlock.grants(rules))
        assert not [place for place in given if place.startswith((str(dead[0]), str(dead[1])))]
        assert str(tree / "keys/server.pem") in given
        assert str(tree / "models/b") not in given

        command = [sys.executable, landlock.__file__, json.dumps(rules), "/bin/true"]
        subprocess.run(command, check=True, timeout=30)
    _, left = psutil.wait_procs([child for child in started_here() if child not in before], timeout=10)
    assert not left, "the process that looked was killed, and ends when the file systems are gone"


def test_paths_are_resolved_as_the_kernel_does(tree: Path) -> None:
    (tree / "one").symlink_to("keys/../data")
    (tree / "two").symlink_to(tree / "one")
    (tree / "loop").symlink_to("loop")
    files = landlock._Files(())
    for path in ("two/file", "one/../file", "keys//./server.key", "nowhere/x", "."):
        assert files.resolve(f"{tree}/{path}") == os.path.realpath(f"{tree}/{path}")
    assert files.resolve("/..") == "/"
    assert files.resolve(f"{tree}/loop/x").endswith("/loop/x")

    dead = landlock._Files({str(tree / "data")})
    assert dead.resolve(f"{tree}/two/deeper/../file") == f"{tree}/data/deeper/../file"
    assert dead.is_dead(f"{tree}/data/deeper/../file")
    assert not dead.is_dead(f"{tree}/database")
    assert dead.entries(f"{tree}/data") == []
