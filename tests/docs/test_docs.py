"""Generated pages and tables are up to date, and links between pages lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .generated import PAGES, WITH_FIGURES, generate

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """Every committed Markdown page of ours."""
    folders = ("docs", "model_repository", "benchmarks")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


def broken_links(page: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(text):
        if "://" not in target and not (page.parent / target).exists():
            yield target


@pytest.mark.parametrize("page", [*PAGES, *WITH_FIGURES])
def test_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == generate(page), "run `make docs`"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


def test_a_link_to_nowhere_is_found() -> None:
    assert list(broken_links(ROOT / "README.md", "[a](docs) [b](nowhere.md#part) [c](https://x.y/z)")) == ["nowhere.md"]


def test_the_index_has_every_page_and_every_decision() -> None:
    listed = set(_LINK.findall((ROOT / "docs/README.md").read_text()))
    pages = [page for folder in ("docs", "docs/adr") for page in (ROOT / folder).glob("*.md")]
    assert [
        str(path) for page in pages if (path := str(page.relative_to(ROOT / "docs"))) not in {*listed, "README.md"}
    ] == []
