"""docs/ota_trust.md quotes messages of the program, and the roles as they are."""

from __future__ import annotations

import re

from ota.publish.roles import TEAM, RolePolicy
from tests.docs.pages import ROOT
from tests.docs.test_troubleshooting import quoted, unsaid

PAGE = (ROOT / "docs/ota_trust.md").read_text()


def test_each_message_is_one_of_the_program() -> None:
    none = "no such message at all"
    assert len(quoted(PAGE)) > 15
    assert unsaid([*quoted(PAGE), none], (path.read_text() for path in (ROOT / "ota").rglob("*.py"))) == [none]


def test_the_roles_are_those_that_the_publisher_makes() -> None:
    rows = re.findall(r"^\| `([a-z]+)(?:-FAMILY)?` \| (\d), (\d) \| (\d+) days \|", PAGE, re.MULTILINE)

    assert {role: RolePolicy(int(count), int(threshold), int(days)) for role, count, threshold, days in rows} == TEAM
