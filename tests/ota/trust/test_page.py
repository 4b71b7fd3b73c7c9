"""docs/ota_trust.md quotes messages of the program, and the roles as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ota.publish.roles import TEAM, RolePolicy
from tests.docs.pages import ROOT
from tests.docs.test_troubleshooting import END, pattern, quoted, texts

PAGE = (ROOT / "docs/ota_trust.md").read_text()
SOURCES = END.join(text for path in sorted((ROOT / "ota").rglob("*.py")) for text in texts(Path(path).read_text()))


@pytest.mark.parametrize("message", quoted(PAGE))
def test_each_message_is_one_of_the_program(message: str) -> None:
    assert pattern(message).search(SOURCES), message


def test_the_roles_are_those_that_the_publisher_makes() -> None:
    rows = re.findall(r"^\| `([a-z]+)(?:-FAMILY)?` \| (\d), (\d) \| (\d+) days \|", PAGE, re.MULTILINE)

    assert {role: RolePolicy(int(count), int(threshold), int(days)) for role, count, threshold, days in rows} == TEAM


def test_the_page_quotes_messages() -> None:
    assert len(quoted(PAGE)) > 15
    assert not pattern("no such message at all").search(SOURCES)
