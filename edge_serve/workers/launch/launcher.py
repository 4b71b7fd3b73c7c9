"""Starts a worker under the interpreter of an environment: `python launcher.py MODULE ARGUMENTS...`.

The environment knows nothing of this package, or has another version of it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # in place of this file's directory, whose files are no top-level modules
    sys.path[0] = str(Path(__file__).resolve().parents[2] / "backends/python_path")
    import edge_serve  # noqa: F401  # by its path (python_path/edge_serve.py)

    del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
