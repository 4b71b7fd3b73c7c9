"""This package, loaded by its path: for interpreters of environments, which do not know it.

They must see nothing else of where it is installed: the packages beside it are built for another interpreter.
`workers.launch.launcher` imports this file in a worker. In processes that a model starts with `multiprocessing`, the
modules beside it do, because `sys.path` is what such a process gets from the worker.
"""

import importlib.util
import sys
from pathlib import Path

_directory = Path(__file__).resolve().parents[2]
_found = importlib.util.spec_from_file_location(
    __name__, _directory / "__init__.py", submodule_search_locations=[str(_directory)]
)
assert _found is not None, f"{_directory} is where this file lies"
assert _found.loader is not None, "a package with a file has a loader"
sys.modules[__name__] = _package = importlib.util.module_from_spec(_found)
_found.loader.exec_module(_package)
