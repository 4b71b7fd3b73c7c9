"""What does a scheduler alone cost? Requests in, batches out, no clock and no workers.

Each scenario works like models/run/driver.py: after each event it calls `next` until the answer is Wait.
Requests gather while an instance works on the batch before. Times are CPU seconds, because nothing here waits.

    python -m benchmarks.scheduler_alone
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random

from benchmarks.report import Report
from edge_serve.messages.infer import InferRequest
from edge_serve.scheduling.core import DynamicBatching, Entry, QueuePolicy, Run, Scheduler
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler

REQUESTS = 20_000
ROUNDS = 7
SEED = 2026

#: one request a microsecond
STEP_NS = 1000

TIMEOUTS = QueuePolicy(default_timeout_us=1_000_000, allow_timeout_override=True, max_queue_size=1000)
LEVELS = DynamicBatching(8, priority_levels=3, default_priority_level=2)

#: name -> (how to make the scheduler, requests that gather while the instance works)
SCENARIOS: dict[str, tuple[Callable[[], Scheduler], int]] = {
    "direct": (lambda: DirectScheduler(1), 1),
    "batch 1": (lambda: DynamicScheduler(DynamicBatching(1), 1), 1),
    "batch 2": (lambda: DynamicScheduler(DynamicBatching(2), 1), 2),
    "batch 4": (lambda: DynamicScheduler(DynamicBatching(4), 1), 4),
    "batch 8": (lambda: DynamicScheduler(DynamicBatching(8), 1), 8),
    "batch 8, delay": (lambda: DynamicScheduler(DynamicBatching(8, max_queue_delay_us=100), 1), 8),
    "batch 8, timeouts": (lambda: DynamicScheduler(DynamicBatching(8, default_policy=TIMEOUTS), 1), 8),
    "batch 8, 3 levels": (lambda: DynamicScheduler(LEVELS, 1), 8),
    "batch 32, 10000 waiting": (lambda: DynamicScheduler(DynamicBatching(32), 1), 10_000),
}


def run() -> Report:
    """Measure each scenario and return medians of the rounds."""
    report = Report("scheduler_alone", "what a scheduler alone costs per request, and how fast it decides")
    for name, (make, gathering) in SCENARIOS.items():
        rounds = [measure(make(), gathering) for _ in range(ROUNDS)]
        seconds = statistics.median(seconds for seconds, _ in rounds)
        decisions = rounds[0][1]
        report.rows.append(
            {
                "scheduler": name,
                "us per request": seconds / REQUESTS * 1e6,
                "requests/s": round(REQUESTS / seconds),
                "decisions/s": round(decisions / seconds),
            }
        )
    slowest = min(report.rows, key=lambda row: int(row["decisions/s"]))
    report.notes.append(f"at least {slowest['decisions/s']:,} decisions/s ({slowest['scheduler']})")
    return report


def measure(scheduler: Scheduler, gathering: int) -> tuple[float, int]:
    """Return the CPU seconds for the load, and the number of answers of `next`."""
    load, start = entries(Random(SEED)), time.process_time()
    decisions = drive(scheduler, load, gathering)
    return time.process_time() - start, decisions


def entries(random: Random) -> list[Entry]:
    """Return requests of one row with a random priority, some with a timeout of their own."""
    return [
        Entry(
            InferRequest("m", priority=random.randint(0, 3), timeout_us=random.choice([0, 0, 500_000])),
            1,
            None,
            number * STEP_NS,
        )
        for number in range(REQUESTS)
    ]


def drive(scheduler: Scheduler, load: list[Entry], gathering: int) -> int:
    """Schedule all of `load`; the instance finishes a batch after every `gathering` requests."""
    decisions = handed_out = now_ns = 0

    def settle() -> None:
        nonlocal decisions, handed_out
        while True:
            decision = scheduler.next(now_ns)
            decisions += 1
            if not isinstance(decision, Run):
                return
            handed_out += len(decision.entries)

    for number, entry in enumerate(load, 1):
        now_ns = entry.arrival_ns
        scheduler.add(entry, now_ns)
        settle()
        if number % gathering == 0:
            scheduler.done(0)
            settle()
    while handed_out < len(load):
        now_ns += 1_000_000  # later than every delay
        scheduler.done(0)
        settle()
    return decisions


if __name__ == "__main__":
    print(run().table())
