"""The health gate of each boot, before `boot-complete.target`: condemns a new system that is worse than the old one.

A fault counts only if the old system did not have it: `baseline.json` has the models that were ready before the
restart. A system that was found good before passes at once: its server is supervised by systemd, its disk by the scrub.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from image.device import decide, report, server
from image.device.data.place import read_place
from image.device.decide import Verdict
from image.device.restart import RestartFailed, restart
from image.device.slots import TRIES, Failure, SlotStore

Ask = Callable[[], dict[str, Any] | None]


def main() -> int:
    """Run the health gate of this boot. Return 0 if the system may be confirmed."""
    boot = SlotStore()
    running = boot.running()
    with boot.lock():
        note(boot)
    if running in boot.load().confirmed:
        print(f"system {running} was found good before")
        return 0
    verdict = judge(boot, running, server.ask)
    print(f"system {running}: {verdict.word}{': ' if verdict.reason else ''}{verdict.reason}")
    if verdict.word == "good":
        report.clear("system-unhealthy")
        return 0
    fall_back(boot, running, "health", verdict.reason, restart)
    return 1


def judge(boot: SlotStore, running: int, ask: Ask) -> Verdict:
    """Return the verdict about the running system, once it is clear."""
    place = read_place(boot.run)
    if place is not None and decide.lacks_data(boot.entries(), boot.load(), running, place.lasting):
        return Verdict("bad", f"it cannot use the data of the old system ({place.reason}): /var is in memory")
    return wait_for_verdict(boot.read_baseline(running), ask)


def note(boot: SlotStore) -> None:
    """Record the version that this boot fell back from, and report it until a newer one is good."""
    running, before = boot.running(), boot.read_failure()
    slots, failure = decide.note_failure(boot.entries(), boot.load(), running, before)
    report.record(boot, slots)
    if failure is None or failure.version == running:
        report.clear("system-fallback")
        return
    if failure != before:
        boot.write_failure(failure)
    text = f"System {failure.version} is not used: {failure.reason}. System {running} runs."
    again = "'edge-ota system apply' installs it again; if it fails again, replace the disk."
    report.report(
        "system-fallback", text, "Publish a system with a higher version." if failure.version in slots.bad else again
    )


def wait_for_verdict(
    baseline: dict[str, Any] | None,
    ask: Ask,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Verdict:
    """Ask the server until the verdict is clear."""
    begin = answered = clock()
    failed_since: float | None = None
    said = ""
    while True:
        status = ask()
        now = clock()
        if status is not None:
            answered = now
        failed_since = (failed_since or now) if decide.all_failed(baseline, status) else None
        # one answer that is missing while models load for minutes is no verdict: the server may restart
        seconds = now - (answered if status is None else begin)
        verdict = decide.judge(baseline, status, seconds, now - failed_since if failed_since else 0.0)
        if verdict.word != "wait":
            return verdict
        if verdict.reason != said:
            said = verdict.reason
            print(f"waiting: {said}", flush=True)
        sleep(decide.POLL_SECONDS)


def fall_back(
    boot: SlotStore, running: int, kind: str, reason: str, restart: Callable[[], None], code: str = "system-unhealthy"
) -> bool:
    """Condemn the running system and restart into another one. Return whether the running one is condemned.

    A system that cannot be left stays, and its fault is reported.

    Args:
        kind: of the `Failure`. code: of the fault.
    """
    with boot.lock():
        usable = decide.others(boot.entries(), running)
        if not usable:
            # it is alive: its tries must not run out, or systemd-boot would start one that may not be
            with report.boot_partition():
                boot.set_tries(running, TRIES)
            _report(code, f"system {running} is not healthy, and there is no other system to start: {reason}")
            return False
        print(f"system {running} is bad: {reason}; restarting into system {usable[0].version}", file=sys.stderr)
        with report.boot_partition():
            boot.condemn(Failure(running, kind, reason))
        if not boot.is_leaving():  # the restart would end here again
            text = f"system {running} is not healthy, and the boot partition cannot be written: {reason}"
            report.report(code, text, report.CHECK_BOOT_PARTITION)
            return False
        try:
            restart()
        except RestartFailed as error:
            text = f"system {running} is not healthy ({reason}), and {error}"
            report.report(code, text, f"Restart it by its power switch; system {usable[0].version} starts then.")
        return True


def _report(code: str, text: str) -> None:
    report.report(code, text, "Install an update: 'edge-ota system apply'; or write the image anew.")
