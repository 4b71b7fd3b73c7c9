"""The generated pages of docs/, the manual page, the completion, and the pages with tables of benchmark results.

`make docs` writes them; tests/docs/test_docs.py fails when one is out of date.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks import tables

ROOT = Path(__file__).parents[2]

#: page -> module with a function `page() -> str`
PAGES = {
    "docs/metrics.md": "deploy.metrics",
    "docs/settings.md": "deploy.settings",
    "docs/ota_settings.md": "deploy.ota.settings",
    "docs/image_settings.md": "deploy.image_settings",
    "deploy/share/edge-ota.1": "deploy.ota.man_page",
    "deploy/share/edge-ota.bash": "deploy.ota.completion",
    "deploy/share/edge-serve.1": "deploy.man_page",
    "deploy/share/edge-serve.bash": "deploy.completion",
}

#: pages that list tests; a test beside those checks that they are up to date
OF_TESTS = {"docs/ota_faults.md": "tests.ota.faults"}

#: pages with tables between `<!-- figures: NAME -->` and `<!-- end of figures -->` (benchmarks/tables.py)
WITH_FIGURES = ("README.md", "benchmarks/README.md", "docs/devices.md", "docs/onnxruntime.md")


def generate(page: str) -> str:
    """Return the content that the page should have."""
    if page in WITH_FIGURES:
        return tables.fill((ROOT / page).read_text())
    return str(importlib.import_module({**PAGES, **OF_TESTS}[page]).page())


if __name__ == "__main__":
    for page in (*PAGES, *OF_TESTS, *WITH_FIGURES):
        stale = not (ROOT / page).exists() or (ROOT / page).read_text() != generate(page)
        if stale and sys.argv[1:] == ["--write"]:
            (ROOT / page).write_text(generate(page))
        print(f"{page}: {('written' if sys.argv[1:] == ['--write'] else 'stale') if stale else 'up to date'}")
