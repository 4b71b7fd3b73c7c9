"""Generated pages and tables are up to date, and links between pages lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hardware import check

from .generated import PAGES, WITH_FIGURES, generate

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_ANCHOR = re.compile(r"\[[^\]]*\]\(([^)#\s:]*)#([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """Return every committed Markdown page of this project."""
    folders = ("docs", "model_repository", "benchmarks")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


def broken_links(page: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(text):
        if "://" not in target and not (page.parent / target).exists():
            yield target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def broken_anchors(page: Path, text: str) -> Iterator[str]:
    for target, anchor in _ANCHOR.findall(text):
        path = page.parent / target if target else page
        if path.suffix == ".md" and path.exists() and anchor not in anchors(path.read_text()):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, *WITH_FIGURES])
def test_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == generate(page), "run `make docs`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_exist(page: Path) -> None:
    assert list(broken_anchors(page, page.read_text())) == []


def test_a_broken_anchor_is_found() -> None:
    text = "[a](docs/words.md#verbs) [b](docs/words.md#no-such) [c](https://x.y/z#part)"
    assert list(broken_anchors(ROOT / "README.md", text)) == ["docs/words.md#no-such"]


def test_a_broken_link_is_found() -> None:
    assert list(broken_links(ROOT / "README.md", "[a](docs) [b](nowhere.md#part) [c](https://x.y/z)")) == ["nowhere.md"]


@pytest.mark.parametrize("folder", ["docs", "docs/adr"])
def test_the_index_of_a_folder_has_every_page(folder: str) -> None:
    listed = set(_LINK.findall((ROOT / folder / "README.md").read_text()))
    assert [page.name for page in (ROOT / folder).glob("*.md") if page.name not in {*listed, "README.md"}] == []


def missing_tests(text: str) -> list[str]:
    """Return the tests that a page names, as `tests/PATH` or `tests/PATH.py::TEST`, and that do not exist."""
    found = []
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", text):
        there = (ROOT / path).exists()
        if not there or (name and f"def {name}(" not in (ROOT / path).read_text()):
            found.append(f"{path}::{name}" if name else path)
    return found


def test_tests_that_pages_name_are_there() -> None:
    assert [(page.name, name) for page in pages() for name in missing_tests(page.read_text())] == []


def test_a_test_that_is_not_there_is_found() -> None:
    named = ("tests/docs", "tests/docs/test_docs.py::pages", "tests/nowhere.py", "tests/docs/test_docs.py::nothing")
    text = " ".join(f"`{name}`" for name in named)
    assert missing_tests(text) == ["tests/nowhere.py", "tests/docs/test_docs.py::nothing"]


def test_tests_that_the_page_about_tensorrt_names_are_there() -> None:
    """Each of its rows names its test: a file of the backend's tests, or a path."""
    text = (ROOT / "docs/tensorrt.md").read_text()
    named = [ROOT / f"tests/backends/tensorrt/{name}.py" for name in re.findall(r"`(test_\w+)`", text)]
    assert len(named) > 25
    assert [str(path) for path in named if not path.exists()] == []
    table = text[text.index("| feature of Triton") : text.index("## Choose the library")]
    assert [row for row in cells(table) if "test" not in row[1]] == []


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_each_claim_about_gpus_names_its_check() -> None:
    """A test, a step of `make hw-check`, a command, or "nothing" with the reason; steps exist."""
    text = (ROOT / "docs/hardware.md").read_text()
    rows = cells(text[text.index("| claim") : text.index("## Test the device image")])
    assert len(rows) >= 20
    shown = re.compile(r"`tests/|step `|`edge-serve |`make |`python -m |nothing: ")
    assert [row for row in rows if len(row) != 3 or not shown.search(row[1]) or not row[2]] == []
    named = re.findall(r"step `([^`]+)`", text)
    assert set(named) <= set(check.steps("GPU", 1.0))


def test_pages_that_were_not_confirmed_on_a_gpu_point_to_the_claims() -> None:
    """A line "State" that says so, and the README."""
    without = []
    for page in pages():
        text = page.read_text()
        state = re.findall(r"\*\*State: (?:[^*]|\*(?!\*))*stand-in.*?\n\n", text, re.DOTALL)
        without += [page.name for one in state if "hardware.md#see-what-only-a-gpu-shows" not in one]
    assert without == []
    assert "docs/hardware.md#see-what-only-a-gpu-shows" in (ROOT / "README.md").read_text()
