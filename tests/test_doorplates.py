"""Each folder's `__init__.py` lists the files and folders of that folder, one line each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: its one purpose is to be on the `sys.path` of models
PLAIN = {"python_path"}
FILES = [
    path for package in ("edge_serve", "ota", "deploy", "image", "packs") for path in (ROOT / package).rglob("*.py")
]
FOLDERS = sorted({path.parent for path in FILES})


def contents(folder: Path) -> set[str]:
    """Return the names that a doorplate lists: `name` for a file, `name/` for a folder of Python files."""
    files = {path.stem for path in folder.glob("*.py") if path.name != "__init__.py"}
    return files | {f"{path.parent.name}/" for path in folder.glob("*/*.py")}


def listed(doorplate: str) -> set[str]:
    """Return the names that a docstring lists: lines of a name, two spaces or more, and what it does."""
    return set(re.findall(r"^ *(\w+/?) {2,}\S", doorplate, re.MULTILINE))


def doorplate_of(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text()), clean=False) or ""


def names(folders: Iterable[Path]) -> list[str]:
    return [str(folder.relative_to(ROOT)) for folder in folders]


@pytest.mark.parametrize("folder", [one for one in FOLDERS if one.name not in PLAIN], ids=lambda one: names([one])[0])
def test_the_doorplate_lists_what_is_in_the_folder(folder: Path) -> None:
    assert listed(doorplate_of(folder)) == contents(folder)


def test_a_file_that_is_not_listed_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""A room.\n\n    door  opens\n    attic/  is above\n"""\n')
    (tmp_path / "door.py").touch()
    (tmp_path / "window.py").touch()
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic/trunk.py").touch()
    assert contents(tmp_path) == {"door", "window", "attic/"}
    assert listed(doorplate_of(tmp_path)) == {"door", "attic/"}
