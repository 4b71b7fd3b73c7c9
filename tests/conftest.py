"""For all tests."""

from __future__ import annotations

import compileall
import gc
import os
import sys
from pathlib import Path

import pytest

from edge_serve.backends.privacy import private
from tests.skips import gpu_line

TESTS = Path(__file__).parent

# before a test imports onnxruntime here; workers must see to it themselves (tests/server/test_privacy.py)
os.environ.update(private(os.environ))

# Hundreds of tests start servers, which start workers. Where PYTHONDONTWRITEBYTECODE is set, each of these processes
# would compile every module anew, which is two fifths of its start.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(TESTS.parent / "edge_serve", quiet=2)
# The same for the tests: pytest rewrites their assertions, which is two thirds of the collection. Nothing is written
# beside the modules, and processes that tests start write nothing at all.
sys.pycache_prefix = str(TESTS.parent / ".pytest_cache/pycache")
sys.dont_write_bytecode = False

# pytest rewrites this plug-in too, a second for each process unless kept
from hypothesis import HealthCheck, settings  # noqa: E402

# The collection makes objects that stay to the end. To walk through them again and again took half of its time.
gc.disable()

# The gate says the same of the same commit, also on a machine that other programs use: no example has to come in time.
# `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

#: of these folders, single tests or fixtures last seconds
LONG = {"docs", "ota", "packs", "server", "supervision", "systemd", "transport", "workers"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first, so that the test processes of `make test` end together."""
    start = len(str(TESTS)) + 1
    items.sort(key=lambda item: str(item.path)[start:].partition("/")[0] not in LONG)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not among the tests themselves."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line which tests a GPU would have run."""
    if line := gpu_line(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)
