"""Each message that docs/troubleshooting.md quotes is still one of the program's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.docs.pages import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
#: stands for a value in a message
VALUE = "\0"


def texts(source: str) -> Iterator[str]:
    """Every text of a module, with VALUE where an f-string or a % puts a value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%\.?\d*[a-z]", VALUE, node.value)


def quoted(page: str) -> list[str]:
    """The messages in the first column of the tables that are headed `message`."""
    found = []
    for table in re.findall(r"^\| message \|.*\n(?:\|.*\n)+", page, re.MULTILINE):
        cells = [row.split(" | ")[0] for row in table.splitlines()[2:]]
        found += [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return found


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(part.strip()) for part in text.split("...")), re.IGNORECASE | re.DOTALL)


def longest_part(message: str) -> str:
    return max(message.lower().split("..."), key=len).strip()


def unsaid(messages: Iterable[str], sources: Iterable[str]) -> list[str]:
    """Return the messages that are in no text of these modules."""
    said = [text.lower() for source in sources for text in texts(source)]

    def is_said(message: str) -> bool:
        part, whole = longest_part(message), pattern(message)
        return any(part in text and whole.search(text) for text in said)

    return [message for message in messages if not is_said(message)]


def likely(messages: Iterable[str], sources: Iterable[str]) -> list[str]:
    """Return the modules that have a part of a message as they are written, with their texts of several lines joined.

    Most messages are there, and to parse all modules takes seconds.
    """
    parts = {longest_part(message) for message in messages}
    joined = ((source, re.sub(r'"\s*\n\s*f?"', "", source).lower()) for source in sources)
    return [source for source, text in joined if any(part in text for part in parts)]


def test_messages_are_those_of_the_program() -> None:
    messages = quoted(PAGE.read_text())
    sources = [path.read_text() for room in ("edge_serve", "ota", "packs") for path in (ROOT / room).rglob("*.py")]

    assert len(messages) > 50
    left = unsaid(messages, likely(messages, sources))
    assert not left or unsaid(left, sources) == []


def test_a_removed_message_is_found() -> None:
    source = 'x = f"model {name} is " "late"; log.info("%s of %d", 1, 2)'

    assert set(texts(source)) >= {f"model {VALUE} is late", f"{VALUE} of {VALUE}"}
    assert pattern("model ... is late").search(f"model {VALUE} is late")
    assert not pattern("model is late").search(f"model {VALUE} is late")
    assert unsaid(["Model ... is late", "is LATE", "late model"], [source]) == ["late model"]
    assert quoted(
        "| message | fix |\n|---|---|\n| `a ...` or `b` | `c` |\n\n| what | fix |\n|---|---|\n| `d` | |\n"
    ) == [
        "a ...",
        "b",
    ]
