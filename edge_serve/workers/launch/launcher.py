"""Starts a worker under the interpreter of an environment: `python launcher.py MODULE ARGUMENTS...`.

The environment knows nothing of this package, and must see nothing else of where it is installed: the packages beside
it are built for another interpreter. So the package alone is put in place, by its path.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

PACKAGE = "edge_serve"


def install(directory: Path) -> None:
    """Make the package in `directory` importable, before one of the same name that the environment may have."""
    found = importlib.util.spec_from_file_location(
        PACKAGE, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert found is not None, f"{directory} is where this file lies"
    assert found.loader is not None, "a package with a file has a loader"
    module = importlib.util.module_from_spec(found)
    sys.modules[PACKAGE] = module
    found.loader.exec_module(module)


if __name__ == "__main__":
    del sys.path[0]  # this file's directory: its neighbours are no top-level modules
    del sys.argv[0]
    install(Path(__file__).resolve().parents[2])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
