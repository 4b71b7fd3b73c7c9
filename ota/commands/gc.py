"""`edge-ota gc`: removes unused releases and blobs."""

from __future__ import annotations

import argparse
import json
import sys
import time

from ota.errors import StoreError
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.store import directories, garbage, history
from ota.store.history import HistoryEvent
from ota.store.lock import acquire_lock

HELP = "remove releases and blobs that neither serve nor are wanted; nothing younger than an hour"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print what was removed as JSON")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Collect garbage."""
    layout = StateLayout(settings.state_dir)
    with acquire_lock(layout, "gc"):
        directories.prepare(layout)
        found = garbage.collect(layout, settings.model_repository, time.time())
        if found.paths:
            history.append(layout, HistoryEvent(time.time(), "collected", message=f"{found.freed} bytes"))
    if arguments.json:
        document = {"paths": found.paths, "freed_bytes": found.freed, "failures": found.failures}
        print(json.dumps(document, indent=2))
    else:
        print(f"{len(found.paths)} files and releases removed, {found.freed} bytes freed")
    for text in found.failures:
        print(f"edge-ota: {text}", file=sys.stderr)
    return StoreError.exit_status if found.failures else 0
