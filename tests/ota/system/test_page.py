"""docs/image_updates.md quotes messages of the program, and has those of updates of the system."""

from __future__ import annotations

from tests.docs.pages import ROOT
from tests.docs.test_troubleshooting import pattern, quoted, unsaid
from tests.ota.fetch.test_messages import raised

PAGE = (ROOT / "docs/image_updates.md").read_text()
OWN = ("ota/agent/system/update.py", "ota/agent/system/verify.py", "ota/decide/system.py", "ota/fetch/staged.py")


def test_each_message_is_one_of_the_program() -> None:
    none = "no such message at all"
    sources = [path.read_text() for part in ("ota", "image/device") for path in (ROOT / part).rglob("*.py")]
    assert len(quoted(PAGE)) > 15
    assert unsaid([*quoted(PAGE), none], sources) == [none]


def test_each_message_is_on_the_page() -> None:
    known = [pattern(text) for text in quoted(PAGE)]
    messages = [text for path in OWN for text in raised((ROOT / path).read_text()) if " " in text]
    assert len(messages) > 5
    assert [text for text in messages if not any(one.search(text) for one in known)] == []
