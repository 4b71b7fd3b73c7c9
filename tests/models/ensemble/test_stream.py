"""Requests of ensembles with decoupled members, which answer when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_serve.errors import Cancelled, Internal, InvalidArgument
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import DataType, Handle, InferTensor
from edge_serve.models.ensemble.ensemble import EnsembleRunner
from edge_serve.models.ensemble.flight import Ensemble
from edge_serve.scheduling.ensemble import ensemble_plan
from tests.leases import Slot
from tests.models.ensemble.test_ensemble import CHAIN, NO_SEQUENCE, Job, Scene, int32, step

#: p streams, q follows each of its responses, and both are answered
BOTH = step("p", {"A": "X"}, {"C": "Y"}) + step("q", {"A": "Y"}, {"C": "Z2"})
#: p streams, q and r follow side by side
FORK = (
    step("p", {"A": "X"}, {"C": "t"}) + step("q", {"A": "t"}, {"C": "u"}) + step("r", {"A": "t", "B": "u"}, {"C": "Y"})
)


def streaming(steps: str, outputs: Sequence[str] = ("Y",), decoupled: str = "p", most_calls: int = 0) -> Scene:
    """An ensemble of which some members are decoupled."""
    scene = Scene(steps, outputs)
    for name in decoupled:
        model = scene.models[name]
        model.signature = replace(model.signature, decoupled=True)
    scene.signature = replace(scene.signature, decoupled=True)
    plan = ensemble_plan(scene.config)
    ensemble = Ensemble(plan, scene.signature, scene.statistics, scene.lookup, scene.clock, most_calls)
    scene.runner = EnsembleRunner(ensemble)
    return scene


def respond(job: Job, *outputs: InferTensor, lease: Slot | None = None, final: bool = False) -> None:
    """One of several responses."""
    request = job.request
    job.on_response(InferResponse(request.model_name, "1", request.id, list(outputs), final=final, lease=lease))


def end(job: Job) -> None:
    """No (further) response."""
    job.on_response(InferResponse(job.request.model_name, "1", final=True, null=True))


def return_from_execute(job: Job) -> None:
    """The model does not read the inputs any more."""
    assert job.request.lease is not None
    job.request.lease.release()


def values(scene: Scene) -> list[list[int]]:
    """Return the answers, without the final empty ones."""
    return [[tensor.data[0] for tensor in answer.outputs] for answer in scene.answers if not answer.null]


def test_each_response_starts_a_separate_chain() -> None:
    scene = streaming(CHAIN)
    scene.send(id="7")
    for value in (1, 2):
        respond(scene.job("p"), int32("C", value))
        assert scene.job("q").request.inputs == [int32("A", value)]
        scene.job("q").answer(int32("C", value + 10))
        assert not scene.answers[-1].final
    end(scene.job("p"))
    return_from_execute(scene.job("p"))

    assert values(scene) == [[11], [12]]
    assert [answer.final for answer in scene.answers] == [False, False, True]
    assert scene.answers[2].null
    assert scene.answers[0].parameters == NO_SEQUENCE
    assert scene.runner.in_flight() == 0
    assert scene.statistics.success.count == 1


def test_a_request_counts_once_the_times_of_its_decoupled_members_are_known() -> None:
    """A decoupled model may send its last response long before `execute` returns, which reports the times."""
    scene = streaming(CHAIN, decoupled="pq")
    times = ComputeTimes()
    scene.send(compute=times)
    respond(scene.job("p"), int32("C", 1), final=True)
    respond(scene.job("q"), int32("C", 2), final=True)
    assert scene.answer.final
    for name in ("q", "p"):
        assert (scene.statistics.success.count, scene.runner.in_flight()) == (0, 1)
        compute = scene.job(name).request.compute
        assert compute is not None
        compute.add(1000, 1010, 1110, 1115)
        return_from_execute(scene.job(name))
        return_from_execute(scene.job(name))

    stats = scene.statistics
    assert (stats.success.count, stats.execution_count, scene.runner.in_flight()) == (1, 1, 0)
    assert [d.ns for d in (stats.compute_input, stats.compute_infer, stats.compute_output)] == [20, 200, 10]
    assert times.infer_ns == 200


def test_the_last_chain_ends_the_stream() -> None:
    scene = streaming(CHAIN)
    scene.send()
    respond(scene.job("p"), int32("C", 1), final=True)
    scene.job("q").answer(int32("C", 2))

    assert scene.answer.final
    assert values(scene) == [[2]]


def test_no_response_is_an_end_without_one() -> None:
    scene = streaming(CHAIN)
    scene.send()
    end(scene.job("p"))

    assert scene.answer.null
    assert scene.answer.final


def test_chains_that_overtake_each_other_are_answered_in_order() -> None:
    scene = streaming(FORK)
    scene.send()
    for value in (1, 2):
        respond(scene.job("p"), int32("C", value))
    first, second = scene.models["q"].jobs
    second.answer(int32("C", 22))
    scene.job("r").answer(int32("C", 32))
    assert not scene.answers
    first.answer(int32("C", 21))
    assert scene.job("r").request.inputs == [int32("A", 1), int32("B", 21)]
    scene.job("r").answer(int32("C", 31))

    assert values(scene) == [[31], [32]]


def test_a_decoupled_member_behind_another_numbers_its_own_responses() -> None:
    scene = streaming(CHAIN, decoupled="pq")
    scene.send()
    for value in (1, 2):
        respond(scene.job("p"), int32("C", value), final=value == 2)
    first, second = scene.models["q"].jobs
    respond(second, int32("C", 20))
    respond(first, int32("C", 10))
    respond(first, int32("C", 11), final=True)
    end(second)

    assert values(scene) == [[20], [10], [11]]
    assert scene.answers[-1].final


def test_an_error_ends_all_chains_and_waits_for_what_runs() -> None:
    scene = streaming(CHAIN)
    scene.send()
    respond(scene.job("p"), int32("C", 1))
    respond(scene.job("p"), int32("C", 2))
    first, second = scene.models["q"].jobs
    first.fail(Internal("broken"))
    assert scene.job("p").cancelled
    assert second.cancelled
    second.answer(int32("C", 3))
    respond(scene.job("p"), int32("C", 3))
    assert not scene.answers
    end(scene.job("p"))

    assert scene.answer.final
    assert scene.error.message == "in ensemble 'e', broken"
    assert scene.calls() == [1, 2, 0]


def test_a_client_that_disconnects_cancels_the_stream() -> None:
    scene = streaming(CHAIN)
    ticket = scene.send()
    respond(scene.job("p"), int32("C", 1))
    ticket.cancel()
    assert scene.job("p").cancelled
    scene.job("q").fail(Cancelled(""))
    end(scene.job("p"))

    assert isinstance(scene.error, Cancelled)
    assert scene.statistics.failures["CANCELED"] == 1


@pytest.mark.parametrize(("final", "count"), [(False, 1), (True, 2)])
def test_a_failure_counts_once_if_the_step_ends_after_its_error(final: bool, count: int) -> None:
    scene = streaming(CHAIN)
    scene.send()
    scene.job("p").on_response(InferResponse("p", "1", error=Internal("no"), final=final))
    if not final:
        end(scene.job("p"))

    assert (scene.statistics.fail.count, scene.statistics.failures["OTHER"]) == (count, count)


def test_memory_is_released_with_its_last_user() -> None:
    scene = streaming(BOTH, ["Y", "Z2"])
    body, first, second, third = Slot(), Slot(), Slot(), Slot()
    scene.send(lease=body)
    respond(scene.job("p"), int32("C", 1), lease=first)
    scene.job("q").answer(int32("C", 2), lease=second)
    assert (first.released, second.released) == (0, 0)
    lease = scene.answers[0].lease
    assert lease is not None
    lease.release()
    assert (first.released, second.released) == (1, 1)

    respond(scene.job("p"), int32("C", 3), lease=third)
    scene.job("q").fail(Internal("broken"))
    end(scene.job("p"))
    return_from_execute(scene.job("p"))
    assert (third.released, body.released) == (1, 1)


def test_memory_that_a_decoupled_member_reads_is_its_own_until_execute_returns() -> None:
    scene = streaming(CHAIN, decoupled="pq")
    body, between = Slot(), Slot()
    scene.send(lease=body)
    respond(scene.job("p"), int32("C", 1), lease=between, final=True)
    respond(scene.job("q"), int32("C", 2), final=True)

    assert scene.answer.final
    assert (body.released, between.released) == (0, 0)
    return_from_execute(scene.job("q"))
    assert (body.released, between.released) == (0, 1)
    return_from_execute(scene.job("p"))
    assert (body.released, between.released) == (1, 1)


def test_a_decoupled_member_that_refuses_a_request_does_not_get_its_memory() -> None:
    def refuse(job: Job) -> None:
        raise Internal("no")

    scene = streaming(CHAIN, decoupled="pq")
    body, between = Slot(), Slot()
    scene.models["q"].at_once = refuse
    scene.send(lease=body)
    respond(scene.job("p"), int32("C", 1), lease=between, final=True)
    return_from_execute(scene.job("p"))
    assert (body.released, between.released) == (1, 1)


def test_an_input_that_is_an_output_is_copied_for_each_answer() -> None:
    scene = streaming(CHAIN, ["Y", "X"])
    body = Slot()
    given = Handle("X", DataType.INT32, (1,), bytearray(int32("X", 7).data), -1, body.arena, 64)
    scene.send(given, lease=body)
    for value in (1, 2):
        respond(scene.job("p"), int32("C", value), final=value == 2)
        scene.job("q").answer(int32("C", value))
    return_from_execute(scene.job("p"))

    assert body.released == 1
    assert [answer.outputs[0] for answer in scene.answers] == [int32("X", 7)] * 2
    assert all(answer.lease is None for answer in scene.answers)


def test_tensors_of_an_arena_are_handed_on_as_handles() -> None:
    scene = streaming(CHAIN)
    scene.send()
    tensor, slot = int32("C", 1), Slot()
    tensor.offset = 4096
    respond(scene.job("p"), tensor, lease=slot)

    (given,) = scene.job("q").request.inputs
    assert isinstance(given, Handle)
    assert (given.name, given.arena, given.place, given.offset) == ("A", slot.arena, 4096, -1)


def test_max_inflight_requests_holds_calls_back() -> None:
    scene = streaming(CHAIN, most_calls=2)
    scene.send()
    for value in range(5):
        respond(scene.job("p"), int32("C", value))
    assert scene.calls() == [1, 2, 0]
    for index in range(5):
        scene.models["q"].jobs[index].answer(int32("C", index))
    end(scene.job("p"))
    return_from_execute(scene.job("p"))

    assert values(scene) == [[0], [1], [2], [3], [4]]
    assert scene.runner.in_flight() == 0


def test_a_missing_input_is_a_deadlock() -> None:
    scene = streaming(CHAIN)
    scene.send(int32("Z", 1))

    assert isinstance(scene.error, InvalidArgument)
    assert "unexpected deadlock" in scene.error.message
