"""The lines of keys."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from image.device.provision.lines import KeyPath, places

tomllib = importlib.import_module("tomllib")  # Python 3.11
TEXT = '''\
schema = 1 # one
"quoted key" = 'it''s'
[host]
  name = "a#b=[c]\\"d" # not "this"
dotted . inner = 2
[server.settings]
A = """
line = 1
""quote""""
B = \'\'\'x
]\'\'\'
[[server.tokens]]
name = "one"
[[server.tokens]]
name = "two"
hosts = [ # first
  "x", "y",
  { z = [1, 2], "w" = 3.5 },
]
[server.tokens.more]
deep = true
[empty]
'''.replace("'it''s'", "'its'")


def flat(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ({path} if path else set()).union(*(flat(one, (*path, key)) for key, one in inner))


def test_each_key_of_a_text_has_a_place_with_its_line() -> None:
    found = places(TEXT)
    assert flat(tomllib.loads(TEXT)) <= set(found)
    lines = {path: place.line for path, place in found.items()}
    assert lines[("schema",)] == 1
    assert lines[("quoted key",)] == 2
    assert lines[("host", "name")] == 4
    assert lines[("host", "dotted", "inner")] == 5
    assert lines[("server", "settings", "A")] == 7
    assert lines[("server", "settings", "B")] == 10
    assert lines[("server", "tokens", 0, "name")] == 13
    assert lines[("server", "tokens", 1, "name")] == 15
    assert lines[("server", "tokens", 1, "hosts", 2, "w")] == 18
    assert lines[("server", "tokens", 1, "more", "deep")] == 21
    assert lines[("empty",)] == 22


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_place_of_a_value_is_its_text(newline: str) -> None:
    text = TEXT.replace("\n", newline)
    found = places(text)
    values = {path: text[place.start : place.end] for path, place in found.items()}
    assert values[("schema",)] == "1"
    assert values[("host", "name")] == '"a#b=[c]\\"d"'
    assert values[("server", "tokens", 1, "hosts", 2, "w")] == "3.5"
    assert values[("server", "tokens", 1, "hosts", 1)] == '"y"'
    assert tomllib.loads("x = " + values[("server", "settings", "A")]) == {
        "x": tomllib.loads(text)["server"]["settings"]["A"]
    }
