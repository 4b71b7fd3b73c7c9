from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from ota.errors import AlreadyRunning
from ota.layout import StateLayout
from ota.store.lock import acquire_lock


@pytest.mark.fault("C5")
def test_a_second_agent_names_the_first_and_a_dead_one_leaves_no_lock(layout: StateLayout) -> None:
    with (
        acquire_lock(layout, "apply"),
        pytest.raises(AlreadyRunning, match=rf"'edge-ota apply' \(process {os.getpid()}\) works on") as refused,
        acquire_lock(layout, "gc"),
    ):
        pass
    assert refused.value.exit_status == 9
    assert "stop a run of the timer with 'systemctl stop edge-ota', and repeat this command" in refused.value.message
    code = (
        "import os; from pathlib import Path; from ota.layout import StateLayout\n"
        "from ota.store.lock import acquire_lock\n"
        f"with acquire_lock(StateLayout(Path({str(layout.state_dir)!r})), 'apply'): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with acquire_lock(layout, "gc"):
        pass


@pytest.mark.fault("D1")
def test_a_disk_that_takes_no_byte_does_not_keep_gc_from_its_work(layout: StateLayout) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with acquire_lock(layout, "gc"):
            full = layout.lock.stat().st_size == 0
            with pytest.raises(AlreadyRunning, match="another edge-ota works on"), acquire_lock(layout, "apply"):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full


def test_a_shorter_name_replaces_a_longer_one(layout: StateLayout) -> None:
    with acquire_lock(layout, "apply --scheduled"):
        pass
    with acquire_lock(layout, "gc"):
        assert layout.lock.read_text() == f"{os.getpid()} gc\n"
