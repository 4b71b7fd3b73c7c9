"""A server in mode `poll` that scans five times a second: `python quick_polls.py COMMAND -m edge_serve serve ...`.

`--repository-poll-secs` takes whole seconds, as Triton's. A change is loaded after two or three scans, and some tests
wait for ten changes.
"""

from __future__ import annotations

import sys

from edge_serve import server
from edge_serve.cli import main
from edge_serve.models.control.poller import Poller
from edge_serve.models.control.registry import Registry
from edge_serve.models.repository.repository import Repository

#: before the command that starts a server
QUICK_POLLS = (sys.executable, __file__)


class _QuickPoller(Poller):
    def __init__(self, repository: Repository, registry: Registry, interval: float | None) -> None:
        assert interval is not None, "this is for the mode `poll`"
        super().__init__(repository, registry, interval / 5)


if __name__ == "__main__":
    server.Poller = _QuickPoller  # type: ignore[attr-defined]  # for tests only
    sys.exit(main(sys.argv[4:]))
