"""The code that docs/tour.md shows exists, and the examples of docs/extend.md work and pass their tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs/tour.md"
EXTEND = ROOT / "docs/extend.md"
MOST_LINES = 150
MOST_NEW_LINES = 30

_LINK = re.compile(r"\]\(\.\./((?:edge_serve|tests)/[\w/]+\.py)\)")
_FENCE = re.compile(r"```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ((?:edge_serve|models)/\S+)\n")
_TEST = re.compile(r"# at the end of (tests/\S+)\n")
_TEST_NAME = re.compile(r"^def (test_\w+)", re.MULTILINE)
#: example of docs/extend.md -> folders of the code that it changes
EXAMPLES = {
    "Add a route": 1,
    "Add a route below a model": 1,
    "Add a metric": 1,
    "Add a metric with a new value": 1,
    "Count requests": 3,
    "Add a scheduler": 1,
    "Add a model parameter": 1,
    "Change the order of a queue": 1,
    "Add a backend": 0,
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the file that the last link before it names."""

    line: int
    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = []
    for fence in _FENCE.finditer(page):
        before = page[: fence.start()]
        links = _LINK.findall(before)
        found.append(Block(before.count("\n") + 1, fence[1], links[-1] if links else "", fence[2]))
    return found


def excerpts(block: Block) -> list[str]:
    """Return the parts of a block that `...` separates, each without its indentation."""
    parts = re.split(r"^\.\.\.\n", block.text, flags=re.MULTILINE)
    return [textwrap.dedent(part).rstrip("\n") for part in parts]


def is_in(excerpt: str, source: str) -> bool:
    """Return whether consecutive lines of `source` are the excerpt, at any common indentation."""
    lines, wanted = source.splitlines(), excerpt.splitlines()
    return any(
        textwrap.dedent("\n".join(lines[at : at + len(wanted)])) == excerpt
        for at, line in enumerate(lines)
        if line.strip() == wanted[0].strip()
    )


def missing(page: str) -> list[str]:
    """Return a message for each excerpt of a page that its file does not contain."""
    return [
        f"line {block.line}: {block.file} does not contain:\n{part}\nShow the code as it is now, and adapt the text."
        for block in blocks(page)
        for part in excerpts(block)
        if not (ROOT / block.file).is_file() or not is_in(part, (ROOT / block.file).read_text())
    ]


def test_the_code_of_the_tour_exists() -> None:
    page = TOUR.read_text()

    if wrong := missing(page):
        pytest.fail("\n".join([f"{TOUR.name} shows code that does not exist:", *wrong]))
    assert len(blocks(page)) > 10
    assert len(page.splitlines()) <= MOST_LINES


def test_an_excerpt_that_does_not_exist_is_found() -> None:
    page = "[a](../edge_serve/clock.py)\n```py\nimport time\n...\nno such line\n```\n"
    page += "[b](../edge_serve/no.py)\n```py\nx\n```\n"

    assert [text.splitlines()[0] for text in missing(page)] == [
        "line 2: edge_serve/clock.py does not contain:",
        "line 8: edge_serve/no.py does not contain:",
    ]


def test_indentation_must_be_common() -> None:
    source = "if a:\n    b\n        c\n"

    assert is_in("b\n    c", source)
    assert not is_in("b\nc", source)
    assert not is_in("a:", source)


# ---- the examples ---------------------------------------------------------------------------------------------------


def apply(block: Block, tree: Path) -> int:
    """Carry out a block of docs/extend.md in a copy of the code, and return how many lines it adds to the code.

    Raises:
        AssertionError: the lines of a diff that are not new are not in its file, or not once.
    """
    if named := _FILE.match(block.text):
        path = tree / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        return len([line for line in block.text.splitlines()[1:] if line])
    if test := _TEST.match(block.text):
        with (tree / test[1]).open("a") as file:
            file.write(f"\n\n{block.text}")
        return 0
    if block.language != "diff":
        return 0
    path = tree / block.file
    lines = block.text.splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in " -")
    new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
    source = path.read_text()
    times = source.count(f"\n{old}")
    assert times == 1, f"line {block.line} of {EXTEND.name}: found {times} times in {block.file}, expected once:\n{old}"
    path.write_text(source.replace(f"\n{old}", f"\n{new}"))
    return sum(line[:1] == "+" for line in lines) if changed_file(block) else 0


def copy_code(tree: Path) -> None:
    """Copy the code and its tests. The byte code of files that no example changes stays valid."""
    shutil.copytree(ROOT / "edge_serve", tree / "edge_serve")
    for folder in ("ota", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)


def changed_file(block: Block) -> str:
    """Return the file of edge_serve/ that a block changes; "" = none."""
    named = _FILE.match(block.text)
    file = named[1] if named else block.file if block.language == "diff" else ""
    return file if file.startswith("edge_serve/") else ""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with all examples applied, and a model repository `models` beside it."""
    tree = tmp_path_factory.mktemp("changed")
    copy_code(tree)
    for block in blocks(EXTEND.read_text()):
        apply(block, tree)
    (tree / "models/rounded/1").mkdir()
    return tree


def run(script: str, tree: Path) -> str:
    return run_python(["-c", textwrap.dedent(script)], tree)


def run_python(arguments: list[str], tree: Path) -> str:
    """Run Python in a copy of the code, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    made = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def sections() -> dict[str, list[Block]]:
    """Return the blocks of each example by its title."""
    parts = re.split(r"^## ", EXTEND.read_text(), flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: blocks(part) for part in parts}


def test_each_example_is_short(tmp_path: Path) -> None:
    copy_code(tmp_path)
    added = {title: sum(apply(block, tmp_path) for block in found) for title, found in sections().items()}

    assert list(added) == list(EXAMPLES)
    assert [title for title, lines in added.items() if not 0 < lines < MOST_NEW_LINES] == []


def test_each_example_changes_as_few_folders_of_the_code_as_it_says() -> None:
    folders = {
        title: len({Path(file).parent for block in found if (file := changed_file(block))})
        for title, found in sections().items()
    }

    assert folders == EXAMPLES


@pytest.mark.slow
def test_each_example_of_the_code_has_a_test_that_passes(changed: Path) -> None:
    tests = [
        [f"{file[1]}::{name}" for block in found if (file := _TEST.match(block.text)) for name in _names(block)]
        for found in sections().values()
    ]
    doorplate = "tests/test_doorplates.py::test_the_doorplate_lists_what_is_in_the_folder"
    run_python(["-m", "pytest", "-q", "-n", "0", *sum(tests, [doorplate])], changed)

    assert [title for title, found in zip(EXAMPLES, tests, strict=True) if not found] == ["Add a backend"]


def _names(block: Block) -> list[str]:
    return _TEST_NAME.findall(block.text)


@pytest.mark.slow
def test_the_route_the_metric_and_the_backend_answer(changed: Path) -> None:
    printed = run(
        """
        from urllib.request import urlopen
        import numpy as np
        from edge_serve import Server

        ports = {"allow_http": True, "http_port": 0, "allow_metrics": True, "metrics_port": 0}
        with Server("models", **ports) as server:
            print(server.infer("rounded", {"X": np.array([1.4, 1.6], np.float32)})["Y"].tolist())
            http, metrics = (server.addresses[name][0] for name in ("HTTP", "metrics"))
            for path in ("/edge-serve/models", "/v2/models/rounded/platform"):
                print(urlopen(f"http://{http}{path}").read().decode())
            page = urlopen(f"http://{metrics}/metrics").read().decode()
            ours = ("edge_serve_mean_batch_size", "edge_serve_instances", "edge_serve_deadline_requests")
            for line in page.splitlines():
                if line.startswith(ours):
                    print(line)
        """,
        changed,
    )

    assert printed.splitlines() == [
        "[1.0, 2.0]",
        '{"models":["rounded"]}',
        '"rounded"',
        'edge_serve_instances{model="rounded",version="1"} 1',
        'edge_serve_mean_batch_size{model="rounded",version="1"} 1',
        'edge_serve_deadline_requests_total{model="rounded",version="1"} 0',
    ]
