"""Schedulers that delay their first batch until enough requests are queued, a hook for tests.

Rules: triton-inference-server/core src/dynamic_batch_scheduler.cc (BatcherThread) and src/sequence_batch_scheduler
(DelayScheduler). Each scheduler waits once, and no timeout ends the wait, nor does `stop`. The default scheduler never
waits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from edge_serve.records import frozen
from edge_serve.scheduling.core import NOTHING, Decision, DynamicBatching, Entry, Run, SequenceBatching, Wait
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.sequence.sequence import ends

#: the environment variables that Triton reads
REQUESTS = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
#: how long requests may wait before the scheduler is asked again, which shows that it does not hang
_LOOK_AGAIN_NS = 1_000_000_000


@frozen
class StartDelay:
    """The number of requests that a scheduler waits for.

    Attributes:
        requests: in the queue of a dynamic batcher, or in the slots of a sequence batcher; 0 = there is no delay.
        backlog: in addition, in the backlog of a sequence batcher with the strategy `direct`.
    """

    requests: int = 0
    backlog: int = 0


NO_DELAY = StartDelay()


def read_delay(environ: Mapping[str, str]) -> StartDelay:
    """Return the delay that the environment variables ask for."""
    return StartDelay(_number(environ.get(REQUESTS, "")), _number(environ.get(BACKLOG, "")))


class DelayedDynamic(DynamicScheduler):
    """A dynamic batcher that waits for its queue to have `requests` requests, however many rows they have."""

    def __init__(
        self, batching: DynamicBatching, instances: int, passive: Collection[int] = (), *, requests: int
    ) -> None:
        super().__init__(batching, instances, passive)
        self._awaited = requests

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        if len(self._queue) < self._awaited:
            return Wait(now_ns + _LOOK_AGAIN_NS) if self._queue else NOTHING
        self._awaited = 0
        return super().next(now_ns)


class DelayedDirect(DirectSequences):
    """The strategy `direct`, which counts the slots of all instances together, and the backlog. Requests behind the END
    of an earlier sequence of their ID count as backlog."""

    def __init__(
        self, batching: SequenceBatching, instances: int, passive: Collection[int] = (), *, delay: StartDelay
    ) -> None:
        super().__init__(batching, instances, passive)
        self._awaited = delay

    def _decide(self, now_ns: int) -> Run | int:
        if self._awaited.requests:
            in_slots = sum(_first_sequence(sequence.queue) for _, _, sequence in self.slots)
            backlog = len(self._queued) - in_slots
            if in_slots < self._awaited.requests or backlog < self._awaited.backlog:
                return 0
            self._awaited = NO_DELAY
        return super()._decide(now_ns)


class DelayedOldest(OldestSequences):
    """The strategy `oldest`, in which each instance waits for its own dynamic batcher to have `requests` requests. That
    has at most one request of each sequence."""

    def __init__(
        self, batching: SequenceBatching, instances: int, passive: Collection[int] = (), *, requests: int
    ) -> None:
        self._awaited = requests
        super().__init__(batching, instances, passive)

    def _new_batcher(self) -> DynamicScheduler:
        return DelayedDynamic(self._rules, 1, requests=self._awaited)


def _first_sequence(queue: Collection[Entry]) -> int:
    """Return the number of requests up to the first END, or of all."""
    return next((number for number, entry in enumerate(queue, 1) if ends(entry)), len(queue))


def _number(text: str) -> int:
    """Return the number at the start of a text, as C's `atoi` does; 0 if there is none."""
    found = re.match(r"\s*\+?(\d{1,9})", text, re.ASCII)
    return int(found[1]) if found else 0
