"""The delay before the first batch, with the numbers of requests that Triton's variables give."""

from __future__ import annotations

import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import Entry, Scheduler
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.policy import scheduler_for
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.start_delay import NO_DELAY, StartDelay, read_delay

from .simulation import MS, entry, ids, settle


def dynamic(requests: int, instances: int = 1) -> Scheduler:
    config = pb.ModelConfig(name="m", max_batch_size=8)
    config.dynamic_batching.default_queue_policy.default_timeout_microseconds = 1000
    return scheduler_for(config, instances, delay=StartDelay(requests))


def sequences(delay: StartDelay, instances: int = 1, *, oldest: int = 0, rows: int = 2) -> Scheduler:
    """`oldest` is the number of candidates; 0 = the strategy `direct`."""
    config = pb.ModelConfig(name="m", max_batch_size=rows)
    batching = config.sequence_batching
    batching.max_sequence_idle_microseconds = 1_000_000
    if oldest:
        batching.oldest.max_candidate_sequences = oldest
    return scheduler_for(config, instances, delay=delay)


def add(scheduler: Scheduler, *texts: str) -> None:
    """`7s` starts sequence 7, `7e` ends it, `7` is in between."""
    for text in texts:
        flags = SEQUENCE_START * ("s" in text) | SEQUENCE_END * ("e" in text)
        request = InferRequest("m", id=text, correlation_id=int(text.rstrip("se")), flags=flags)
        scheduler.add(Entry(request, 1, None, 0), 0)


def runs(scheduler: Scheduler) -> list[list[str]]:
    """Return all batches that follow without another request."""
    found = []
    while batches := settle(scheduler, 0)[0]:
        found += ids(batches)
        for run in batches:
            scheduler.done(run.instance)
    return found


@pytest.mark.parametrize(
    ("environ", "delay"),
    [
        ({}, NO_DELAY),
        ({"TRITONSERVER_DELAY_SCHEDULER": "8", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2"}, StartDelay(8, 2)),
        ({"TRITONSERVER_DELAY_SCHEDULER": " 12 requests"}, StartDelay(12)),
        ({"TRITONSERVER_DELAY_SCHEDULER": "-1"}, NO_DELAY),
        ({"TRITONSERVER_DELAY_SCHEDULER": "many", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": ""}, NO_DELAY),
    ],
)
def test_the_numbers_are_read_as_in_c(environ: dict[str, str], delay: StartDelay) -> None:
    assert read_delay(environ) == delay


@pytest.mark.parametrize("delay", [NO_DELAY, StartDelay(0, 3)])
def test_without_requests_to_wait_for_the_schedulers_are_the_usual_ones(delay: StartDelay) -> None:
    config = pb.ModelConfig(name="m", max_batch_size=8)
    kinds: list[type[Scheduler]] = [type(scheduler_for(config, 1, delay=delay))]
    config.dynamic_batching.SetInParent()
    kinds.append(type(scheduler_for(config, 1, delay=delay)))
    kinds += [type(sequences(delay)), type(sequences(delay, oldest=4))]

    assert kinds == [DirectScheduler, DynamicScheduler, DirectSequences, OldestSequences]


def test_the_default_scheduler_never_waits() -> None:
    scheduler = scheduler_for(pb.ModelConfig(name="m", max_batch_size=8), 1, delay=StartDelay(8))
    scheduler.add(entry(id="a"), 0)

    assert type(scheduler) is DirectScheduler
    assert runs(scheduler) == [["a"]]


def test_a_dynamic_batcher_waits_once_for_requests_whatever_their_rows() -> None:
    scheduler = dynamic(3)
    for name in "ab":
        scheduler.add(entry(id=name, rows=4), 0)
        assert runs(scheduler) == []
    scheduler.add(entry(id="c", rows=2), 0)
    assert runs(scheduler) == [["a", "b"], ["c"]]

    scheduler.add(entry(id="d"), 0)
    assert runs(scheduler) == [["d"]]


def test_a_cancelled_request_is_not_counted() -> None:
    scheduler = dynamic(2)
    first = entry(id="a")
    scheduler.add(first, 0)
    scheduler.cancel(first)
    scheduler.add(entry(id="b"), 0)

    assert runs(scheduler) == []


def test_timeouts_count_when_the_delay_is_over() -> None:
    scheduler = dynamic(2)
    scheduler.add(entry(id="a"), 0)
    assert settle(scheduler, 5 * MS)[:2] == ([], [])

    scheduler.add(entry(id="b"), 5 * MS)
    found, refused, _ = settle(scheduler, 5 * MS)
    assert [one.entry.request.id for one in refused] == ["a"]
    assert ids(found) == [["b"]]


def test_a_delayed_queue_is_asked_again_so_that_it_does_not_count_as_hung() -> None:
    scheduler = dynamic(2)
    assert settle(scheduler, 7)[2] is None
    scheduler.add(entry(id="a"), 7)
    until_ns = settle(scheduler, 7)[2]

    assert until_ns is not None
    assert until_ns > 7


def test_direct_counts_all_slots_together() -> None:
    scheduler = sequences(StartDelay(4), instances=2, rows=1)
    add(scheduler, "1s", "2s", "1e")
    assert runs(scheduler) == []

    add(scheduler, "2e")
    assert sorted(runs(scheduler)) == [["1e"], ["1s"], ["2e"], ["2s"]]
    add(scheduler, "3s")
    assert runs(scheduler) == [["3s"]]


def test_direct_counts_the_backlog_separately() -> None:
    scheduler = sequences(StartDelay(3, 2))
    add(scheduler, "1s", "2s", "3s", "3", "3e")
    assert runs(scheduler) == [], "the requests of the backlog were counted as those of slots"

    scheduler = sequences(StartDelay(3, 2))
    add(scheduler, "1s", "2s", "1e", "2e", "3s")
    assert runs(scheduler) == [], "requests of slots were counted as those of the backlog"

    add(scheduler, "3e")
    assert runs(scheduler) == [["1s", "2s"], ["1e", "2e"], ["3s"], ["3e"]]


def test_direct_counts_the_next_sequence_of_an_id_as_backlog() -> None:
    scheduler = sequences(StartDelay(4, 2))
    add(scheduler, "1s", "1e", "2s", "2e", "2s")
    assert runs(scheduler) == []

    add(scheduler, "2e")
    assert runs(scheduler) == [["1s", "2s"], ["1e", "2e"], ["2s"], ["2e"]]


def test_oldest_counts_one_request_of_each_sequence_in_an_instance() -> None:
    scheduler = sequences(StartDelay(2, 9), instances=2, oldest=2)
    add(scheduler, "1s", "1", "2s")  # in one instance each
    assert runs(scheduler) == []

    add(scheduler, "3s")
    assert runs(scheduler) == [["1s", "3s"], ["1"]], "the other instance did not wait"
    add(scheduler, "4s")
    assert runs(scheduler) == [["2s", "4s"]]
