"""Confirms the running system once its health is good, and gives its entry all tries back.

The entry of a good system is counted at each boot, too. So a slot whose disk has gone bad is left after a few boots,
even if it dies before any program can report it.
"""

from __future__ import annotations

from image.device import decide, files, report
from image.device.slots import TRIES, SlotStore


def main() -> int:
    """Confirm the running system. Return 0 in any case: a partition that cannot be written is reported."""
    confirm(SlotStore())
    return 0


def confirm(boot: SlotStore) -> None:
    """Record the running version as good, and set its tries, also if its record cannot be written.

    A rollback that came first stays.
    """
    with boot.lock():
        if not boot.is_leaving():
            _confirm(boot)


def _confirm(boot: SlotStore) -> None:
    running, entries, slots = boot.running(), boot.entries(), boot.load()
    confirmed = decide.confirm(entries, slots, running)
    failure = boot.read_failure()
    is_over = failure is not None and failure.version <= running
    report.record(boot, confirmed)
    with report.boot_partition():
        boot.set_tries(running, TRIES)
        # if power cuts used up the tries of this entry too, systemd-boot would start the bad one
        boot.remove_entries(one for one in entries if not one.usable and one.version != running)
        if is_over:
            files.remove(boot.failure)
    with report.data_partition():
        if is_over:
            files.remove(boot.failure_copy)
        if running in boot.load().confirmed:  # without the record, the next boot judges again
            boot.remove_baseline(running)
    if is_over:
        report.clear("system-fallback")
    if confirmed != slots:
        print(f"system {running} is confirmed")
