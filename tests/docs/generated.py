"""The generated pages of docs/ and what makes them: `make docs` writes them, tests/docs/test_docs.py holds them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: page -> module with a function `page() -> str`
PAGES = {
    "docs/metrics.md": "edge_serve.metrics.document",
    "docs/settings.md": "edge_serve.config.server_docs",
}


def generate(page: str) -> str:
    """What the page should say."""
    return str(importlib.import_module(PAGES[page]).page())


if __name__ == "__main__":
    for page in PAGES:
        stale = not (ROOT / page).exists() or (ROOT / page).read_text() != generate(page)
        if stale and sys.argv[1:] == ["--write"]:
            (ROOT / page).write_text(generate(page))
        print(f"{page}: {('written' if sys.argv[1:] == ['--write'] else 'stale') if stale else 'up to date'}")
