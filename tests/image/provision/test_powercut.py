"""Power cuts at every operation of provisioning. After each, the next start ends with the same result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from image.device import files
from image.device.files import FileStep
from ota.files import DiskOperation
from tests.image.provision.board import MINIMAL, Board
from tests.ota.powercut import Disk, Tree, crash_states, put

TOKEN = "3f0123456789abcdef0123456789abcdef"
OLD = MINIMAL + '[host]\nname = "old"\n[ota]\nroot = "root.json"\n[network]\nntp = ["ntp.example"]\n'
NEW = f"""{MINIMAL}
[host]
name = "new"
[ota]
root = "root.json"
url = ["https://me:geheim@a.example"]
client_cert = "client.crt"
client_key = "client.key"
[[server.tokens]]
name = "a"
role = "infer"
token = "{TOKEN}"
[ssh]
keys = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA93+4rk2w2hFhZ6n3MMH5OJtKqQ2VqDzHg8sD+0Vx0I someone"]
"""
#: states that the default run tries
SAMPLE = 12


class Recorded:
    """A start that applies new settings, recorded. /run is in memory and is lost with the power."""

    def __init__(self, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
        self.board = board
        monkeypatch.setattr("image.device.provision.programs._certificate", lambda *arguments: [])
        board.write("root", "root.json")
        board.write(OLD)
        assert board.boot() == []
        for name in ("client.crt", "client.key"):
            board.write("geheim", name)
        board.write(NEW)
        self.before = board.base / "before"
        self.operations: list[DiskOperation] = []
        self.forget()
        shutil.copytree(board.root, self.before, symlinks=True)
        monkeypatch.setattr(files, "point", self._record)
        assert board.boot() == []
        monkeypatch.setattr(files, "point", lambda step: None)
        self.end = self.result()

    def _record(self, step: FileStep) -> None:
        if not step.path.startswith(str(self.board.root / "run")):
            self.operations.append(DiskOperation(step.kind, step.path, step.target, step.data))

    def forget(self) -> None:
        """Lose the power."""
        shutil.rmtree(self.board.root / "run", ignore_errors=True)

    def result(self) -> dict[str, bytes]:
        found = self.board.files()
        return {path: data for path, data in found.items() if not path.startswith(("run/", "zones/"))}

    def states(self, forgetful: str = "nothing") -> Iterator[tuple[int, Tree]]:
        self.forget()
        shutil.rmtree(self.board.root)
        shutil.copytree(self.before, self.board.root, symlinks=True)
        yield from crash_states(self.board.root, self.operations, Disk(self.board.root, lambda path: forgetful in path))

    def check(self, tree: Tree) -> None:
        """Start the device after a cut."""
        put(tree, self.board.root)
        mistakes = self.board.boot()
        assert mistakes == []
        assert self.result() == self.end
        self.forget()


@pytest.fixture
def recorded(board: Board, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(board, monkeypatch)


def test_the_next_start_completes_what_a_power_cut_interrupted(recorded: Recorded) -> None:
    states = [tree for _, tree in recorded.states()]
    assert len(states) > 150
    for tree in states[:: len(states) // SAMPLE]:
        recorded.check(tree)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_next_start_completes_what_any_power_cut_interrupted(recorded: Recorded) -> None:
    for _, tree in list(recorded.states()):
        recorded.check(tree)


def test_an_fsync_that_is_missing_is_found(recorded: Recorded) -> None:
    """The settings are stored before their secrets are removed: if they were not durable, a key would be lost."""
    lost = 0
    for _, tree in list(recorded.states("var/lib/edge-device"))[-5:]:
        put(tree, recorded.board.root)
        if recorded.board.boot() or recorded.result() != recorded.end:
            lost += 1
        recorded.forget()
    assert lost
