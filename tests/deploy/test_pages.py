"""The pages that the package installs."""

from __future__ import annotations

from pathlib import Path

from deploy.pages import without_dead_links, write
from tests.docs.test_docs import broken_links


def test_links_to_files_that_are_not_installed_become_text() -> None:
    text = (
        "See [the code](../edge_serve/x.py), [a\npage](status.md#part), ![a picture](none.png) and [it](https://x.y/z)."
    )
    assert without_dead_links(text, {"status.md"}) == (
        "See the code, [a\npage](status.md#part), a picture and [it](https://x.y/z)."
    )


def test_no_installed_page_has_a_dead_link(tmp_path: Path) -> None:
    write(tmp_path / "doc")
    pages = sorted((tmp_path / "doc").glob("*.md"))

    assert len(pages) > 20
    assert {page.name: found for page in pages if (found := list(broken_links(page, page.read_text())))} == {}
    assert (tmp_path / "doc/status.png").exists()
