"""A front end that is killed leaves no worker, no memory and no file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.named_memory import assert_gone, named_memory

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from tests.workers.harness import request, serving

async def work():
    async with serving(Path(sys.argv[1]), instances=2) as served:
        served.send(request(do=sys.argv[2], ms=60_000))
        await asyncio.sleep(0.1)
        print(json.dumps(served.model.pids()), flush=True)
        await asyncio.sleep(60)

asyncio.run(work())
"""


@pytest.mark.parametrize("deed", ["sleep", "hold"])
def test_workers_end_with_their_front_end(tmp_path: Path, deed: str) -> None:
    shared_memory = named_memory()
    front_end = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), deed],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert front_end.stdout is not None
    with front_end.stdout:
        (pid,) = json.loads(front_end.stdout.readline())
        worker = psutil.Process(pid)
        front_end.kill()
        front_end.wait()
    end = time.monotonic() + 10
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.005)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert_gone(named_memory() - shared_memory)
    assert {path.name for path in tmp_path.iterdir()} == {"1", "backend.py"}
