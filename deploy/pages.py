"""Writes the user pages for /usr/share/doc: `python -m deploy.pages FOLDER`.

The package has the pages of docs/ and no other file of the checkout, so a link to another file becomes its text.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from deploy.version import CHECKOUT

PATTERNS = ("*.md", "*.png")

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def without_dead_links(text: str, there: Collection[str]) -> str:
    """Return the text of a page in which a link to a file that is not in `there` becomes its text."""

    def kept(link: re.Match[str]) -> str:
        target = link[3]
        return link[0] if "://" in target or target in there else link[2]

    return _LINK.sub(kept, text)


def write(folder: Path) -> None:
    """Write the pages and their pictures into a directory, which is made if missing."""
    pages = [page for pattern in PATTERNS for page in sorted((CHECKOUT / "docs").glob(pattern))]
    there = {page.name for page in pages}
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        if page.suffix == ".md":
            (folder / page.name).write_text(without_dead_links(page.read_text(), there))
        else:
            shutil.copyfile(page, folder / page.name)
        (folder / page.name).chmod(0o644)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
