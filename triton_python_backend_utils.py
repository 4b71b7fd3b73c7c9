"""The module `triton_python_backend_utils` outside the server: in tests, notebooks and debuggers, after `pip install`.

The classes are the worker's own (edge_serve/backends/python_path). In a worker this file is not used.
"""

import sys

if "c_python_backend_utils" in sys.builtin_module_names:
    # This process is the stub of a real Triton. Its own file comes later on the module path.
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    _own = Path(__file__).parent
    _found = PathFinder.find_spec(__name__, [entry for entry in sys.path if Path(entry or ".").resolve() != _own])
    if _found is None or _found.loader is None:
        raise ModuleNotFoundError("Triton's own triton_python_backend_utils.py is not on sys.path", name=__name__)
    sys.modules[__name__] = _module = module_from_spec(_found)
    _found.loader.exec_module(_module)
else:
    from edge_serve.backends.python_path.triton_python_backend_utils import *  # noqa: F403
