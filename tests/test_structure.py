"""Figures of the structure: long functions, names, crowded folders, and docstrings in the old style, or with errors
that do not exist.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("edge_serve", "ota", "deploy", "image", "packs")
MOST_LINES = 60
MOST_FILES = 15
MOST_MARKED = 0.02
#: classes of image/ with the name of another package's class, or of another class of image/
SHARED_NAMES = {"Changes", "Key", "Place", "Refused"}
#: marks of sentences that name a thing by a question word, or nobody in particular (style rules P3, P4, and P7)
MARK = re.compile(
    r"^(What|Who|Whoever|Its?)\b|\b(nobody|somebody|whoever|is told|has gone|goes on|stands still|of ours|lest)\b", re.I
)
#: names of errors before a colon, at the beginning of a line or of a sentence; a library's have its name before them
RAISED = re.compile(r"(?:^ *|[.;] )([A-Z]\w*(?:, [A-Z]\w*)*)(?=: )", re.M)
#: verbs that the table of verbs (docs/words.md) replaces, as the first word of a function's name
REPLACED = {
    "abandon", "begin", "bring", "die", "drop", "end", "forget", "give", "hold", "keep", "leave", "let", "look",
    "remember", "shut", "tell", "throw",
}  # fmt: skip
PARTICIPLES = {"absent", "listed", "moved", "placed", "released", "settled", "unpacked"}
#: words of CUDA's graphs, Triton's sequences, the HTTP API, and the leaves of a tree
ALLOWED = {"begin_capture", "end_capture", "end_sequence", "leave_safe_mode", "leaves"}
#: names that other rooms still have
TO_RENAME = {
    "edge_serve/backends": {"begin"},
    "edge_serve/doctor": {"look"},
    "edge_serve/models/run": {"_begins"},
    "edge_serve/protocol": {"_begin_body", "_begin_head", "_end_rest", "begin_rest", "end_request"},
    "edge_serve/scheduling": {"_ends", "end", "ends"},
    "edge_serve/systemd": {"_end_line"},
    "edge_serve/transport": {
        "_begin", "_end", "_end_conversation", "_end_deflated", "_end_if_done", "_end_unread", "_end_with", "end",
    },
    "image": {"look"},
    "ota": {
        "_bring", "_end", "_holds", "_remember", "begin", "begin_undo", "end", "end_undo", "keep_only", "look",
    },
}  # fmt: skip

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """A module, a class, or a function; `place` is its file and line, a module's name is ""."""

    place: str
    name: str
    is_class: bool
    lines: int
    docstring: str


@functools.cache
def definitions_of(folder: str) -> list[Definition]:
    """Return the definitions in all files of a folder that are not generated."""
    found: list[Definition] = []
    gc.disable()  # four fifths of the time: a tree has many objects and no garbage
    try:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                found += definitions(str(path.relative_to(ROOT)), path.read_text())
    finally:
        gc.enable()
    return found


def definitions(file: str, source: str) -> Iterator[Definition]:
    """Yield the definitions in a file, from its statements: expressions have none."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module):
            yield Definition(f"{file}:1", "", False, 0, ast.get_docstring(node) or "")
        elif isinstance(node, (ast.ClassDef, *Function)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            docstring = ast.get_docstring(node) or ""
            yield Definition(f"{file}:{node.lineno}", node.name, isinstance(node, ast.ClassDef), lines, docstring)
        todo += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]


def long_functions(found: Iterable[Definition]) -> list[str]:
    return [f"{one.place} {one.name}" for one in found if not one.is_class and one.lines > MOST_LINES]


def shared_names(found: Iterable[Definition]) -> dict[str, list[str]]:
    """Return each public class name that is defined more than once, with the places."""
    places: dict[str, list[str]] = {}
    for one in found:
        if one.is_class and not one.name.startswith("_"):
            places.setdefault(one.name, []).append(one.place)
    return {name: found for name, found in places.items() if len(found) > 1}


def replaced_verbs(found: Iterable[Definition]) -> Iterator[Definition]:
    """Yield the functions whose names have a replaced verb, also in the third person, or are a participle."""
    for one in found:
        name = one.name.strip("_")
        verb = name.partition("_")[0]
        replaced = name in PARTICIPLES or verb in REPLACED or verb.removesuffix("s") in REPLACED
        if replaced and not one.is_class and name not in ALLOWED:
            yield one


def marked(found: Iterable[Definition]) -> list[str]:
    """Return the places of the docstrings in the old style, each with its mark."""
    return [f"{one.place}: {match[0]}" for one in found if (match := MARK.search(one.docstring))]


def unknown_errors(found: Iterable[Definition], more: Iterable[Definition] = ()) -> list[str]:
    """Return the names below `Raises:` that are neither built in nor a class, also of `more` definitions."""
    found = list(found)
    known = {one.name for one in (*found, *more) if one.is_class} | set(dir(builtins))
    sections = [(one.place, one.docstring.partition("\nRaises:\n")[2]) for one in found]
    names = [(place, name) for place, text in sections for group in RAISED.findall(text) for name in group.split(", ")]
    return [f"{place} {name}" for place, name in names if name not in known]


@pytest.mark.parametrize("folder", [*PACKAGES, "systemd", "tests"])
def test_functions_have_at_most_60_lines(folder: str) -> None:
    assert long_functions(definitions_of(folder)) == []


def test_public_classes_have_names_of_their_own() -> None:
    found = shared_names(one for package in PACKAGES for one in definitions_of(package))
    assert {name: places for name, places in found.items() if name not in SHARED_NAMES} == {}
    assert found.keys() == SHARED_NAMES, "an exception is no longer needed"


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_have_the_verbs_of_the_table(package: str) -> None:
    new, old = [], {room: set(names) for room, names in TO_RENAME.items() if room.split("/")[0] == package}
    for one in replaced_verbs(definitions_of(package)):
        room = next((room for room in old if one.place.startswith(f"{room}/")), "")
        if one.name in TO_RENAME.get(room, ()):
            old[room].discard(one.name)
        else:
            new.append(f"{one.place} {one.name}")
    assert new == []
    assert [(room, names) for room, names in old.items() if names] == [], "these exceptions are no longer needed"


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_docstrings_in_the_old_style_are_rare(package: str) -> None:
    found, documented = marked(definitions_of(package)), [one for one in definitions_of(package) if one.docstring]
    assert len(found) <= MOST_MARKED * len(documented), "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_errors_that_exist(package: str) -> None:
    imported = () if package in ("ota", "image") else definitions_of("edge_serve")
    assert unknown_errors(definitions_of(package), imported) == []


def test_no_folder_is_crowded() -> None:
    files = Counter(path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert [f"{folder.relative_to(ROOT)}: {count}" for folder, count in files.items() if count > MOST_FILES] == []


def test_faults_are_found() -> None:
    source = 'class Door:\n    """What opens."""\n\n\ndef _keeps_one() -> None:\n' + "    pass\n" * MOST_LINES
    found = list(definitions("a.py", source))
    assert long_functions(found) == ["a.py:5 _keeps_one"]
    assert [one.name for one in replaced_verbs(found)] == ["_keeps_one"]
    assert shared_names([*found, *found]) == {"Door": ["a.py:1", "a.py:1"]}
    assert marked(found) == ["a.py:1: What"]
    raises = "Raises:\n        Door, OSError: it is shut. Gone: it was\n            removed. x.Lost: it is not there."
    found += definitions("b.py", f'def open() -> None:\n    """Open.\n\n    {raises}\n    """\n')
    assert unknown_errors(found) == ["b.py:1 Gone"]
