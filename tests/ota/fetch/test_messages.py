"""docs/ota_fetch.md has each message of a failed download, and only those."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ota import errors, source
from ota.fetch import failures, mirrors
from tests.docs.pages import ROOT
from tests.docs.test_troubleshooting import pattern, quoted, texts, unsaid

PAGE = (ROOT / "docs/ota_fetch.md").read_text()
#: but those of staged systems, which are in docs/image_updates.md
SOURCES = [path.read_text() for path in sorted((ROOT / "ota/fetch").glob("*.py")) if path.stem != "staged"]
ERRORS = {
    name
    for module in (errors, source, failures, mirrors)
    for name, found in vars(module).items()
    if isinstance(found, type) and issubclass(found, errors.OtaError)
}


def raised(text: str) -> Iterator[str]:
    """Yield the texts that errors are made with where they are raised, and what is returned as a reason."""
    for node in ast.walk(ast.parse(text)):
        made: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            made = node.args[0]
        elif isinstance(node, ast.Return):
            made = node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value
        if isinstance(made, (ast.JoinedStr, ast.Constant)):
            whole = next(texts(ast.unparse(made)), "")
            if len(whole.replace("\0", "").strip(" :,;()'")) > 18:
                yield whole


def test_the_page_quotes_messages_of_the_program() -> None:
    assert len(quoted(PAGE)) > 40
    assert unsaid(quoted(PAGE), SOURCES) == []


def test_each_message_is_on_the_page() -> None:
    known = [pattern(text) for text in quoted(PAGE)]
    messages = [text for one in SOURCES for text in raised(one)]

    assert len(messages) > 40
    assert [text for text in messages if not any(one.search(text) for one in known)] == []


def test_a_message_that_the_page_lacks_is_found() -> None:
    assert list(raised('raise FetchError(f"the server {name} has gone away for good")')) == [
        "the server \0 has gone away for good"
    ]
    assert list(raised('def f():\n    return "the server is silent", True')) == ["the server is silent"]
