"""The rules of both sequence batchers one by one, with Triton's texts (`test_sequences_walk` is random)."""

from __future__ import annotations

import pytest

from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import Entry, SequenceBatching
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.sequence.sequences import SequenceScheduler
from tests.scheduling.simulation import MS, ids, settle

IDLE = 20 * MS
KINDS = ["direct", "oldest"]


def batcher(kind: str, rows: int = 2, instances: int = 1, *, iterative: bool = False) -> SequenceScheduler:
    """With `rows` slots in each instance."""
    make = DirectSequences if kind == "direct" else OldestSequences
    return make(SequenceBatching(rows, IDLE // 1000, oldest=kind == "oldest", iterative=iterative), instances)


def part(text: str, now: int = 0, *, timeout_us: int = 0, deadline_ns: int = 0, rows: int = 1) -> Entry:
    """`7s` starts sequence 7, `7e` ends it, `7se` does both, `7` is in between."""
    number = text.rstrip("se")
    flags = SEQUENCE_START * ("s" in text) | SEQUENCE_END * ("e" in text)
    request = InferRequest("m", id=text, correlation_id=int(number or 0), flags=flags, timeout_us=timeout_us)
    request.deadline_ns = deadline_ns
    return Entry(request, rows, None, now)


def add(scheduler: SequenceScheduler, *texts: str, now: int = 0) -> list[Entry]:
    entries = [part(text, now) for text in texts]
    for entry in entries:
        scheduler.add(entry, now)
    return entries


def runs(scheduler: SequenceScheduler, now: int = 0) -> list[list[str]]:
    """Return the batches that start now. They are done at once."""
    found, refused, _ = settle(scheduler, now)
    assert refused == []
    for run in found:
        scheduler.done(run.instance)
    return ids(found)


def refused(scheduler: SequenceScheduler, now: int = 0) -> dict[str, EdgeServeError]:
    found, refusals, _ = settle(scheduler, now)
    assert found == []
    return {refusal.entry.request.id: refusal.error for refusal in refusals}


def refusal(scheduler: SequenceScheduler, entry: Entry, now: int = 0) -> str:
    with pytest.raises(EdgeServeError) as caught:
        scheduler.add(entry, now)
    assert isinstance(caught.value, InvalidArgument)
    return caught.value.message


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_a_sequence_run_one_after_the_other_in_their_slot(kind: str) -> None:
    scheduler = batcher(kind)
    add(scheduler, "1s", "2s", "1", "1e")
    slots = []
    for expected in (["1s", "2s"], ["1"], ["1e"]):
        (run,), _, _ = settle(scheduler, 0)
        assert [entry.request.id for entry in run.entries] == expected
        slots.append(run.slots[0])
        assert settle(scheduler, 0)[0] == [], "a sequence runs twice at a time"
        scheduler.done(run.instance)

    assert slots == [0, 0, 0]
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_keeps_its_instance(kind: str) -> None:
    scheduler = batcher(kind, 1, 2)
    add(scheduler, "1s", "2s")
    where = {run.entries[0].request.correlation_id: run.instance for run in settle(scheduler, 0)[0]}
    for instance in (0, 1):
        scheduler.done(instance)
    add(scheduler, "2", "1")

    assert {run.entries[0].request.correlation_id: run.instance for run in settle(scheduler, 0)[0]} == where


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_free_slot_sequences_wait_first_come_first_served(kind: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1s", "2s", "3s", "2e", "3e")
    assert runs(scheduler) == [["1s"]]
    assert runs(scheduler) == []
    add(scheduler, "1e")

    assert [runs(scheduler) for _ in range(5)] == [[["1e"]], [["2s"]], [["2e"]], [["3s"]], [["3e"]]]
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_must_start(kind: str) -> None:
    scheduler = batcher(kind)
    text = (
        "inference request for sequence 1 to model 'm' must specify the START flag on the first request of the sequence"
    )

    assert refusal(scheduler, part("1")) == text
    add(scheduler, "1se")
    assert refusal(scheduler, part("1e")) == text
    assert scheduler.pending() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_without_an_id_or_with_more_than_one_row_is_in_no_sequence(kind: str) -> None:
    scheduler = batcher(kind)

    assert refusal(scheduler, part("s")) == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )
    assert refusal(scheduler, part("1s", rows=2)) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )
    assert scheduler.pending() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_texts_are_different_ids(kind: str) -> None:
    scheduler = batcher(kind)
    add(scheduler, "1s")
    other = part("1")
    other.request.correlation_id = "1"

    assert "START" in refusal(scheduler, other)


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_sequence_is_removed_and_its_slot_reused(kind: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1s")
    assert [runs(scheduler), runs(scheduler)] == [[["1s"]], []]
    add(scheduler, "2s", now=IDLE // 2)
    _, _, until_ns = settle(scheduler, IDLE // 2)
    assert until_ns == IDLE
    assert runs(scheduler, IDLE) == [["2s"]]

    assert "START" in refusal(scheduler, part("1", IDLE), IDLE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_waits_too_long_for_a_slot_is_refused_and_removed(kind: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1s")
    runs(scheduler)
    for text in ("2s", "2"):
        scheduler.add(part(text, timeout_us=5_000), 0)
    assert settle(scheduler, 0)[2] == 5 * MS
    found = refused(scheduler, 5 * MS)

    assert sorted(found) == ["2", "2s"]
    assert {error.message for error in found.values()} == {"timeout of the corresponding sequence has been expired"}
    assert "START" in refusal(scheduler, part("2e"), 5 * MS)
    add(scheduler, "2s", now=5 * MS)
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_in_the_middle_ends_the_rest_of_its_sequence(kind: str) -> None:
    scheduler = batcher(kind)
    add(scheduler, "1s")
    settle(scheduler, 0)
    scheduler.add(part("1", deadline_ns=3 * MS), 0)
    add(scheduler, "1e", "1s")
    found = refused(scheduler, 3 * MS)

    assert sorted(found) == ["1", "1e"], "the next sequence of this id goes on"
    assert "deadline" in found["1"].message
    scheduler.done(0)
    assert runs(scheduler, 3 * MS) == [["1s"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_counts_after_many_short_sequences(kind: str) -> None:
    """Their clocks are removed in between, and with them that of a sequence that has nothing in the queue."""
    scheduler = batcher(kind)
    scheduler.add(part("1s", deadline_ns=5 * MS), 0)
    assert runs(scheduler) == [["1s"]]
    for number in range(100, 300):
        scheduler.add(part(f"{number}se", deadline_ns=5 * MS), 0)
        assert runs(scheduler) == [[f"{number}se"]]
    add(scheduler, "2s")
    assert len(settle(scheduler, 0)[0]) == 1, "the instance is busy"
    scheduler.add(part("1", deadline_ns=6 * MS), 0)

    assert "deadline" in refused(scheduler, 6 * MS)["1"].message
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_a_request_ends_the_rest_of_its_sequence(kind: str) -> None:
    scheduler = batcher(kind)
    _, middle, _, _ = add(scheduler, "1s", "1", "1", "2s")
    (run,), _, _ = settle(scheduler, 0)
    assert scheduler.cancel(middle)
    assert not scheduler.cancel(middle)
    assert not scheduler.cancel(run.entries[0]), "it runs"
    (error,) = refused(scheduler).values()

    assert isinstance(error, Cancelled)
    with pytest.raises(Cancelled):
        scheduler.add(part("1e"), 0)
    scheduler.done(0)
    add(scheduler, "1se")
    assert runs(scheduler) == [["1se"]]
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_sequence_needs_a_start_once_its_slot_is_free(kind: str) -> None:
    """As in Triton 2.51. Before that, and in the backlog, its requests are cancelled."""
    scheduler = batcher(kind, 1)
    _, second, waits = add(scheduler, "1s", "1", "2s")
    settle(scheduler, 0)
    scheduler.cancel(second)
    scheduler.cancel(waits)
    scheduler.done(0)
    settle(scheduler, 0)

    assert "START" in refusal(scheduler, part("1"))
    assert not scheduler.has_sequence(1)
    with pytest.raises(Cancelled):
        scheduler.add(part("2"), 0)
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["cancelled", "late"])
def test_without_its_end_a_sequence_ends_with_the_request_before(kind: str, how: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1s")
    settle(scheduler, 0)
    last = part("1e", deadline_ns=MS)
    scheduler.add(last, 0)
    if how == "cancelled":
        assert scheduler.cancel(last)
    else:
        assert list(refused(scheduler, MS)) == ["1e"]
    scheduler.done(0)
    add(scheduler, "2se", now=MS)

    assert runs(scheduler, MS) == [["2se"]]
    assert "START" in refusal(scheduler, part("1e"), MS)
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_draining_ends_the_sequences_of_the_requests_that_it_removes(kind: str) -> None:
    scheduler = batcher(kind, 2)
    add(scheduler, "1s", "2s", "3s")
    settle(scheduler, 0)
    add(scheduler, "2", "3")
    assert [entry.request.id for entry in scheduler.drain()] == ["3s", "2", "3"]
    scheduler.done(0)
    scheduler._check()

    for text in ("2", "3"):
        assert "START" in refusal(scheduler, part(text))
    add(scheduler, "1", "4s")
    assert runs(scheduler) == [["1", "4s"]], "the first had nothing in the queue"
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_to_wait_for_a_slot_ends_with_a_drain(kind: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1s")
    settle(scheduler, 0)
    scheduler.add(part("2s", timeout_us=5_000), 0)
    scheduler.drain()
    scheduler._check()
    add(scheduler, "2s", now=5 * MS)

    assert refused(scheduler, 5 * MS) == {}
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_worker_takes_its_sequences_with_it(kind: str) -> None:
    scheduler = batcher(kind, 2, 2)
    add(scheduler, "1s", "2s")
    runs(scheduler)
    add(scheduler, "1", "1s", "2")
    where = {sequence.id: instance for instance, _, sequence in scheduler.slots}
    scheduler.lost(where[1])
    found, refusals, _ = settle(scheduler, 0)

    assert [one.entry.request.id for one in refusals] == ["1"]
    assert "START" in refusals[0].error.message
    assert sorted(entry.request.id for run in found for entry in run.entries) == ["1s", "2"]
    assert all(run.instance == where[2] for run in found)
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_that_lost_their_slot_precede_new_sequences(kind: str) -> None:
    scheduler = batcher(kind, 1)
    add(scheduler, "1se", "2s", "1s")
    settle(scheduler, 0)
    scheduler.lost(0)
    scheduler.back(0)

    assert runs(scheduler) == [["1s"]]
    scheduler._check()


@pytest.mark.parametrize("kind", KINDS)
def test_after_stop_open_sequences_continue_and_new_ones_are_refused(kind: str) -> None:
    scheduler = batcher(kind)
    add(scheduler, "1s")
    scheduler.stop()
    add(scheduler, "1e")
    with pytest.raises(Unavailable, match="Server is stopping"):
        scheduler.add(part("2s"), 0)

    assert [runs(scheduler), runs(scheduler)] == [[["1s"]], [["1e"]]]


# ---- iterative models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["7s", "0"])
def test_each_request_of_an_iterative_model_is_a_sequence_of_its_own(kind: str, text: str) -> None:
    """Another one without START would run with the state that this one leaves in its slot."""
    scheduler = batcher(kind, 1, iterative=True)
    (first,) = add(scheduler, text)
    id = first.request.correlation_id
    assert "START" in refusal(scheduler, part(f"{id}"))
    settle(scheduler, 0)
    assert "START" in refusal(scheduler, part(f"{id}"))
    scheduler.reschedule(first)
    assert "START" in refusal(scheduler, part(f"{id}"))
    add(scheduler, "8s", f"{id}s")
    scheduler.done(0)

    assert scheduler.open_sequences() == 2, "a load that removes instances does not wait for them"
    assert [runs(scheduler) for _ in range(3)] == [[[text]], [["8s"]], [[f"{id}s"]]]
    assert runs(scheduler) == []
    assert not scheduler.open_sequences()
    scheduler._check()


# ---- direct -------------------------------------------------------------------------------------------------------


def test_direct_strategy_reports_the_row_of_each_sequence() -> None:
    scheduler = batcher("direct", 4)
    add(scheduler, "1s", "2s", "3s")
    runs(scheduler)
    add(scheduler, "3", "1")
    (run,), _, _ = settle(scheduler, 0)

    assert ([entry.request.id for entry in run.entries], list(run.slots), run.rows) == (["1", "3"], [0, 2], 3)


def test_direct_gives_the_next_sequence_of_an_id_the_lowest_free_slot() -> None:
    scheduler = batcher("direct")
    add(scheduler, "1s", "2s", "1e", "2e", "2s", "2e")
    found = []
    while batches := settle(scheduler, 0)[0]:
        found += [(ids([run])[0], list(run.slots)) for run in batches]
        scheduler.done(0)

    assert found == [(["1s", "2s"], [0, 1]), (["1e", "2e"], [0, 1]), (["2s"], [0]), (["2e"], [0])]


def test_direct_waits_until_enough_slots_have_something_or_the_oldest_has_waited() -> None:
    rules = SequenceBatching(4, 1_000_000, minimum_slot_utilization=0.5, max_queue_delay_us=3_000)
    scheduler = DirectSequences(rules, 1)
    add(scheduler, "1s")
    assert settle(scheduler, 0) == ([], [], 3 * MS)
    add(scheduler, "2s", now=MS)
    assert runs(scheduler, MS) == [["1s", "2s"]]
    add(scheduler, "1", now=4 * MS)
    assert runs(scheduler, 7 * MS - 1) == []
    assert runs(scheduler, 7 * MS) == [["1"]]


def test_direct_joins_requests_of_one_shape_and_the_oldest_says_which() -> None:
    scheduler = batcher("direct", 4)
    entries = [part(f"{number}s", number) for number in (1, 2, 3)]
    for entry, key in zip(entries, ("wide", "tall", "wide"), strict=True):
        entry.shape_key = key
    for entry in (entries[1], entries[0], entries[2]):
        scheduler.add(entry, 3)

    assert [runs(scheduler, 3), runs(scheduler, 3)] == [[["1s", "3s"]], [["2s"]]]


def test_direct_fills_the_rows_up_to_the_last_one_that_waits_though_it_has_another_shape() -> None:
    scheduler = batcher("direct", 4)
    for number, key in enumerate(("wide", "wide", "tall", "flat"), 1):
        entry = part(f"{number}s", number)
        entry.shape_key = key
        scheduler.add(entry, number)
    rows = []
    while found := settle(scheduler, 9)[0]:
        rows += [(list(run.slots), run.rows) for run in found]
        scheduler.done(0)

    assert rows == [([0, 1], 4), ([2], 4), ([3], 4)]


# ---- oldest -------------------------------------------------------------------------------------------------------


def test_oldest_has_more_candidates_than_rows_and_runs_the_oldest_of_their_heads() -> None:
    scheduler = OldestSequences(SequenceBatching(2, 1_000_000, oldest=True, max_candidate_sequences=3), 1)
    add(scheduler, "1s", "2s", "3s", "4s", "1")
    (run,), _, _ = settle(scheduler, 0)
    assert ([entry.request.id for entry in run.entries], run.rows) == (["1s", "2s"], 0)
    scheduler.done(0)

    assert runs(scheduler) == [["3s", "1"]]
    assert runs(scheduler) == [], "the fourth has no slot"


def test_oldest_waits_for_a_preferred_batch() -> None:
    rules = SequenceBatching(4, 1_000_000, oldest=True, preferred_batch_sizes=(2,), max_queue_delay_us=3_000)
    scheduler = OldestSequences(rules, 1)
    add(scheduler, "1s")
    assert settle(scheduler, 0)[0] == []
    add(scheduler, "2s", now=MS)

    assert runs(scheduler, MS) == [["1s", "2s"]]
    add(scheduler, "2", now=2 * MS)
    assert runs(scheduler, 5 * MS - 1) == []
    assert runs(scheduler, 5 * MS) == [["2"]]
