"""Imports the backend of a pack, as a worker would: `python launcher.py edge_serve.pack.probe DIRECTORY`.

Runs in the interpreter of the pack, so the standard library and NumPy only. It prints why the backend does not import.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.backends.loader import load
from edge_serve.backends.packs import Pack
from edge_serve.errors import EdgeServeError


def main(directory: Path) -> int:
    """Return the exit status: 0 if the backend can be used."""
    name, is_python_based = directory.name.lstrip("."), not (directory / "backend.py").is_file()
    pack = Pack(name, directory, is_python_based)
    try:
        load(name, ModelSpec("probe", 1, directory, directory, {}, pack=pack))
    except EdgeServeError as error:
        print(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
