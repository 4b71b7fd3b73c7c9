"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# The gate says the same of the same commit; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
