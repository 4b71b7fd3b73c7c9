"""Each fault that a device can report is in the docs, with the way out of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "image" / "device"
#: `report("data-full", ...)`, also under other names, and `code = "..."` for a call below, or of an argument
_PYTHON = re.compile(r'\breport\(\s*f?"([a-z][a-z0-9{}-]*)"|\bcode(?:: str)? ?= ?"([a-z-]+)"')
#: `fault data-full "..."`, the same by functions that call it, and a document written by hand
_SHELL = re.compile(r'\b(?:fault|in_memory|set_aside) ([a-z][a-z-]+) "|"code": "([a-z-]+)"')


def _codes() -> set[str]:
    texts = [(path.read_text(), _PYTHON) for path in DEVICE.rglob("*.py")]
    texts += [(path.read_text(), _SHELL) for path in (DEVICE / "initrd").iterdir() if path.is_file()]
    found = {"".join(groups) for text, pattern in texts for groups in pattern.findall(text)}
    return {code.replace("{number}", "1") for code in found}


def test_the_codes_of_programs_and_of_the_initrd_are_found() -> None:
    expected = {"data-full", "data-damaged", "settings-1", "settings-secrets", "system-damaged", "second-disk"}
    assert expected <= _codes()


@pytest.mark.parametrize("code", sorted(_codes()))
def test_the_docs_have_the_code(code: str) -> None:
    pages = [(ROOT / "docs" / f"image_{name}.md").read_text() for name in ("data", "updates", "settings")]
    assert any(f"`{code}`" in page for page in pages)
