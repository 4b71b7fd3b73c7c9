"""For all tests."""

from __future__ import annotations

import os

from hypothesis import settings

from edge_serve.backends.privacy import private

# before a test imports onnxruntime here; workers must see to it themselves (tests/server/test_privacy.py)
os.environ.update(private(os.environ))

# The gate says the same of the same commit; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
