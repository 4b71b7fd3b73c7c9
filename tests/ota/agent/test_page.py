"""docs/ota_device.md has the messages of the agent and its store, and only those."""

from __future__ import annotations

from pathlib import Path

from ota.store.journal import UpdateStage
from tests.docs.pages import ROOT
from tests.docs.test_troubleshooting import pattern, quoted, unsaid
from tests.ota.fetch.test_messages import raised

PAGE = (ROOT / "docs/ota_device.md").read_text()
#: identity and trust have a page of their own; records and journals that are not whole are rebuilt without a word
NAMES = (
    "recorder", "actions", "desired", "checks", "update", "switch", "plan_builder", "links", "lock", "releases"
)  # fmt: skip


def sources() -> list[Path]:
    return sorted(path for room in ("agent", "store") for path in (ROOT / "ota" / room).rglob("*.py"))


def test_the_page_quotes_messages_of_the_program() -> None:
    assert len(quoted(PAGE)) > 20
    others = [ROOT / "ota/files.py", ROOT / "ota/decide/rollout.py"]
    assert unsaid(quoted(PAGE), (path.read_text() for path in [*sources(), *others])) == []


def test_each_message_is_on_the_page() -> None:
    known = [pattern(text) for text in quoted(PAGE)]
    own = [path for path in sources() if path.stem in NAMES and path.parent.name != "system"]  # docs/image_updates.md
    messages = [text for path in own for text in raised(path.read_text())]
    assert len(messages) > 20
    assert [text for text in messages if not any(one.search(text) for one in known)] == []


def test_each_stage_is_on_the_page() -> None:
    assert [stage for stage in UpdateStage if f"| {stage.value} |" not in PAGE] == []
