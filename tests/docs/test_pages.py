"""Every command of README.md and docs/*.md, in the printed order, in a fresh clone; `pages` describes the marks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import (
    ROOT,
    Step,
    as_shown,
    pages,
    steps,
    steps_in,
    summary,
    typed_outside_of_blocks,
)
from tests.docs.terminal import Terminal, copy_checkout, ports

#: begins with a clone alone, and makes its own environment
FRESH = ("README.md",)
WITH_COMMANDS = [page for page in pages() if any(step.kind == "command" for step in steps(page))]


def run_page(page: str, folder: Path, base: Path | None, seconds: float) -> None:
    """Run all steps of a page.

    Raises:
        AssertionError: one of them failed, or printed something else than the page shows.
    """
    with ports() as free, Terminal(folder, base, free, seconds) as terminal:
        for step in steps(page):
            terminal.do(step)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the virtual environment that a new user has after the first command of the README, once for all workers."""
    own = tmp_path_factory.getbasetemp()
    clone = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "clone"
    made = clone.with_name("clone_is_made")
    with clone.with_name("clone_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_environment(clone)
            made.touch()
    return clone / ".venv"


def make_environment(clone: Path) -> None:
    """Make a copy of the checkout with its environment."""
    shutil.rmtree(clone, ignore_errors=True)
    copy_checkout(clone, models=False)
    subprocess.run(["make", "-s", ".venv/serve"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
    # venv's own setuptools, which Python 3.12 has no more, is older than pyproject.toml asks for. The environments of
    # the pages see this one's packages, and so do the builds that pip isolates
    subprocess.run([clone / ".venv/bin/python", "-m", "pip", "uninstall", "-q", "-y", "setuptools"], check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_page(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_page(page, tmp_path, None if page in FRESH else request.getfixturevalue("installed"), 600)


def test_every_command_is_in_a_block_that_is_run_or_has_a_reason() -> None:
    print(summary())

    assert [(page, *typed_outside_of_blocks((ROOT / page).read_text())) for page in pages()] == [
        (page,) for page in pages()
    ]


def test_steps_come_in_the_printed_order() -> None:
    text = """
```bash
echo 1
```
It prints
```text
1
```
<!-- not run: no systemd here -->
```bash
systemctl stop x
```
```python
# models/m/1/model.py
pass
```
```
# models/m/config.pbtxt
```
<!-- run: make serve -->
<!-- stop the server -->
  ```python
  print(2)
  ```
<!-- numbers vary -->
```text
2
```
```json
{}
```
"""
    assert steps_in(text) == [
        Step(2, "command", "echo 1\n", shown="1\n"),
        Step(10, "left", "systemctl stop x\n", "no systemd here"),
        Step(13, "file", "# models/m/1/model.py\npass\n", "models/m/1/model.py"),
        Step(17, "file", "# models/m/config.pbtxt\n", "models/m/config.pbtxt"),
        Step(20, "command", "make serve"),
        Step(21, "stop", ""),
        Step(22, "command", "python3 - <<'END-OF-BLOCK'\nprint(2)\nEND-OF-BLOCK\n", shown="2\n", vary=True),
    ]


def test_a_console_block_has_commands_and_their_output() -> None:
    found = steps_in("```console\n$ echo 1 \\\n> 2\n1 2\n$ true\n```\n")

    assert [(step.text, step.shown) for step in found] == [("echo 1 \\\n2", "1 2"), ("true", None)]


def test_output_is_compared() -> None:
    assert as_shown("a ... c\n", "a b c")
    assert not as_shown("a ... c\n", "a b d")
    assert not as_shown("a.c", "abc")
    assert not as_shown("a 1", "a 2")
    assert as_shown("m   1.5 ms  up 3:20", "m  12 ms up 0:00", vary=True)
    assert not as_shown("m 1.5 ms", "m 1.5 us", vary=True)


def test_a_command_outside_of_a_block_is_found() -> None:
    assert list(typed_outside_of_blocks("a\n\n    curl x\n```\n    curl y\n```\n    $ make z\n")) == [3, 7]


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    others = {"8000": "8000", "8001": "8101", "8002": "8102", "9090": "9190"}
    with Terminal(tmp_path_factory.mktemp("terminal"), None, others, 30) as opened:
        yield opened


def test_a_terminal_keeps_its_directory_and_variables(terminal: Terminal) -> None:
    terminal.do(Step(1, "command", "mkdir here && cd here && export A=1 && say() { echo $A; }"))
    terminal.do(Step(2, "file", "x", "m/file.txt"))
    terminal.do(Step(3, "command", "say; cat m/file.txt; echo; basename $PWD; echo 8001", shown="1\nx\nhere\n8001"))


def test_a_server_gets_a_separate_terminal(terminal: Terminal) -> None:
    terminal.do(Step(1, "command", "echo edge-serve 1 ready in 1 s; sleep 60 & wait"))
    terminal.do(Step(2, "command", "export A=1"))
    terminal.do(Step(3, "stop", ""))
    terminal.do(Step(4, "command", "echo $A", shown="1"))


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (Step(7, "command", "echo no; false"), "line 7 ended with status 1:\nno"),
        (Step(7, "command", "echo 1", shown="2"), "line 7 printed:\n1"),
        (Step(7, "command", "echo $NOBODY"), "line 7 ended with status 1"),
    ],
    ids=["status", "output", "variable"],
)
def test_a_command_that_does_not_do_as_printed_fails(terminal: Terminal, step: Step, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        terminal.do(step)
