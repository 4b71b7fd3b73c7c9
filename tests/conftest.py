"""For all tests."""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path

from hypothesis import settings

from edge_serve.backends.privacy import private

# before a test imports onnxruntime here; workers must see to it themselves (tests/server/test_privacy.py)
os.environ.update(private(os.environ))

# Hundreds of tests start servers, which start workers. Where PYTHONDONTWRITEBYTECODE is set, each of these processes
# would compile every module anew, which is two fifths of its start.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(Path(__file__).parents[1] / "edge_serve", quiet=2)

# The gate says the same of the same commit; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
