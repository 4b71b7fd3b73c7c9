"""The units of the image, without booting it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system.image.test_boot import our_units
from tests.system.image.test_exposure import EXCEPTIONS, MOST

PAGE = (Path(__file__).parents[2] / "docs/image_updates.md").read_text()


def test_the_page_explains_each_unit_that_may_have_more_rights() -> None:
    table = PAGE.split("## What the units may do")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\S+\.service)` \| \w", table, re.MULTILINE) == list(EXCEPTIONS)
    assert f"have {MOST} or less" in table
    assert EXCEPTIONS.keys() <= set(our_units())
