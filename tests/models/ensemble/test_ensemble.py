"""Requests of ensembles, with members that answer when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import signature_of
from edge_serve.errors import Cancelled, EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    Lease,
    Parameter,
    RequestedOutput,
)
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import DataType, InferTensor, Shape
from edge_serve.models.ensemble.ensemble import EnsembleRunner, member_labels
from edge_serve.models.ensemble.flight import Ensemble
from edge_serve.models.run.runner import OnResponse
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.scheduling.ensemble import ensemble_plan
from tests.leases import Slot


def int32(name: str, *values: int, shape: Shape = ()) -> InferTensor:
    return InferTensor(name, DataType.INT32, shape or (len(values),), b"".join(v.to_bytes(4, "little") for v in values))


class Job:
    """A request that a member received; the test answers it."""

    def __init__(self, request: InferRequest, on_response: OnResponse) -> None:
        self.request = request
        self.on_response = on_response
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def set_paused(self, paused: bool) -> bool:
        return False

    def jobs(self) -> tuple[()]:
        return ()

    def answer(
        self, *outputs: InferTensor, lease: Slot | None = None, parameters: dict[str, Parameter] | None = None
    ) -> None:
        request = self.request
        if request.compute is not None:
            request.compute.add(1000, 1010, 1110, 1115)
        self.on_response(
            InferResponse(request.model_name, "1", request.id, list(outputs), parameters or {}, lease=lease)
        )

    def fail(self, error: EdgeServeError, lease: Slot | None = None) -> None:
        self.on_response(InferResponse(self.request.model_name, "1", error=error, lease=lease))


class Model:
    """The part of a `Served` that the ensemble uses: one INT32 tensor goes in as A (B is optional), one comes out as C.

    Attributes:
        at_once: answers right inside `submit` when set.
    """

    version = "1"

    def __init__(self, name: str, *, dims: Shape = (-1,), max_batch_size: int = 0, decoupled: bool = False) -> None:
        inputs = {
            "A": TensorSpec("A", DataType.INT32, dims),
            "B": TensorSpec("B", DataType.INT32, dims, optional=True),
        }
        outputs = {name: TensorSpec(name, DataType.INT32, dims) for name in ("C", "D")}
        self.signature = Signature(
            name, "1", "python", max_batch_size, inputs, outputs, decoupled=decoupled, required=1
        )
        self.jobs: list[Job] = []
        self.at_once: Callable[[Job], None] | None = None

    def submit(self, request: InferRequest, on_response: OnResponse) -> Job:
        job = Job(request, on_response)
        self.jobs.append(job)
        if self.at_once is not None:
            self.at_once(job)
        return job

    @property
    def job(self) -> Job:
        """The latest."""
        return self.jobs[-1]


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 5000

    def now_ns(self) -> int:
        return self.now


def step(model: str, reads: dict[str, str], writes: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{k}" value: "{v}" }}' for k, v in reads.items()]
    maps += [f'output_map {{ key: "{k}" value: "{v}" }}' for k, v in writes.items()]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


CHAIN = step("p", {"A": "X"}, {"C": "t"}) + step("q", {"A": "t"}, {"C": "Y"})
#: p and q side by side, then r
DIAMOND = (
    step("p", {"A": "X"}, {"C": "T"}) + step("q", {"A": "X"}, {"C": "u"}) + step("r", {"A": "T", "B": "u"}, {"C": "Y"})
)


class Scene:
    """An ensemble `e` of X (and Z, optional) to its outputs, over the models p, q and r."""

    def __init__(
        self, steps: str, outputs: Sequence[str] = ("Y",), *, dims: str = "-1", max_batch_size: int = 0, **model: object
    ) -> None:
        self.models = {name: Model(name, **model) for name in "pqr"}  # type: ignore[arg-type]  # options of Model
        faces = "".join(f'output {{ name: "{n}" data_type: TYPE_INT32 dims: [ {dims} ] }}' for n in outputs)
        self.config = parse_model_config(
            f"""name: "e" platform: "ensemble" max_batch_size: {max_batch_size}
            input {{ name: "X" data_type: TYPE_INT32 dims: [ {dims} ] }}
            input {{ name: "Z" data_type: TYPE_INT32 dims: [ {dims} ] optional: true }}
            {faces} ensemble_scheduling {{ {steps} }}"""
        )
        self.signature = signature_of(self.config, "e", 1)
        self.statistics = new_statistics()
        self.clock = Ticks()
        self.answers: list[InferResponse] = []
        self.looked_up: list[tuple[str, int | str, int]] = []
        self.runner = EnsembleRunner(
            Ensemble(ensemble_plan(self.config), self.signature, self.statistics, self.lookup, self.clock)
        )

    def lookup(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
        if name not in self.models:
            raise NotFound(f"no {name}")
        self.looked_up.append((name, correlation_id, flags))
        return cast(Served, self.models[name])

    def send(self, *inputs: InferTensor, wanted: Sequence[str] = (), **fields: object) -> Job:
        request = InferRequest("e", inputs=list(inputs) or [int32("X", 1, 2)], **fields)  # type: ignore[arg-type]
        request.outputs = [RequestedOutput(name) for name in wanted]
        validate(request, self.signature)
        return cast(Job, self.runner.submit(request, request.rows, None, self.answers.append))

    def job(self, model: str) -> Job:
        return self.models[model].job

    def calls(self) -> list[int]:
        """How often each model was asked."""
        return [len(model.jobs) for model in self.models.values()]

    @property
    def answer(self) -> InferResponse:
        assert len(self.answers) == 1
        return self.answers[0]

    @property
    def error(self) -> EdgeServeError:
        assert self.answer.error is not None
        assert not self.answer.outputs
        return self.answer.error


NO_SEQUENCE: dict[str, Parameter] = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


# ---- the way of a request ---------------------------------------------------------------------------------------


def test_tensors_go_from_member_to_member_under_their_own_names() -> None:
    scene = Scene(CHAIN)
    scene.send(int32("X", 1, 2), id="7")
    assert scene.job("p").request.inputs == [int32("A", 1, 2)]

    scene.job("p").answer(int32("C", 3, 4))
    assert scene.job("q").request.inputs == [int32("A", 3, 4)]

    scene.job("q").answer(int32("C", 5, 6))
    assert scene.answer == InferResponse("e", "1", "7", [int32("Y", 5, 6)], NO_SEQUENCE)


def test_everything_about_the_request_reaches_every_member() -> None:
    scene = Scene(CHAIN)
    fields: dict[str, Any] = {
        "id": "7", "parameters": {"k": "v"}, "correlation_id": 9, "flags": SEQUENCE_START, "priority": 2,
        "timeout_us": 30, "deadline_ns": 40,
    }  # fmt: skip
    scene.send(**fields)
    scene.job("p").answer(int32("C", 3))

    for name in "pq":
        asked = scene.job(name).request
        assert {field: getattr(asked, field) for field in fields} == fields
        assert (asked.model_name, asked.model_version) == (name, "1")
        assert [output.name for output in asked.outputs] == ["C"]


def test_independent_members_run_beside_each_other() -> None:
    scene = Scene(DIAMOND, ["Y", "T"])
    scene.send()
    assert scene.calls() == [1, 1, 0]

    scene.job("q").answer(int32("C", 2))
    assert scene.calls() == [1, 1, 0]
    scene.job("p").answer(int32("C", 1))
    assert scene.job("r").request.inputs == [int32("A", 1), int32("B", 2)]
    scene.job("r").answer(int32("C", 3))

    assert scene.answer.outputs == [int32("T", 1), int32("Y", 3)]


def test_some_outputs_need_some_members_only() -> None:
    scene = Scene(DIAMOND, ["Y", "T"])
    scene.send(wanted=["T"])
    scene.job("p").answer(int32("C", 1))

    assert scene.answer.outputs == [int32("T", 1)]
    assert scene.calls() == [1, 0, 0]


def test_members_may_answer_at_once() -> None:
    scene = Scene(DIAMOND)
    for number, model in enumerate(scene.models.values()):
        model.at_once = lambda job, number=number: job.answer(int32("C", number))
    scene.send()

    assert scene.answer.outputs == [int32("Y", 2)]
    assert scene.runner.in_flight() == 0


def test_an_optional_input_flows_only_if_it_was_given() -> None:
    scene = Scene(step("p", {"A": "X", "B": "Z"}, {"C": "Y"}))
    scene.send(int32("X", 1))
    scene.send(int32("X", 1), int32("Z", 2))

    first, second = scene.models["p"].jobs
    assert [tensor.name for tensor in first.request.inputs] == ["A"]
    assert [tensor.name for tensor in second.request.inputs] == ["A", "B"]


def test_an_output_that_a_member_left_out_is_an_input_that_was_not_given() -> None:
    two = step("p", {"A": "X"}, {"C": "T", "D": "u"}) + step("q", {"A": "T", "B": "u"}, {"C": "Y", "D": "V"})
    scene = Scene(two, ["Y", "V"])
    scene.send()
    scene.job("p").answer(int32("C", 1), int32("E", 9))
    assert scene.job("q").request.inputs == [int32("A", 1)]
    scene.job("q").answer(int32("D", 2))

    assert scene.answer.outputs == [int32("V", 2)]


def test_a_member_that_was_swapped_is_picked_up() -> None:
    scene = Scene(CHAIN)
    scene.send()
    old = scene.models["q"]
    scene.models["q"] = Model("q")
    scene.job("p").answer(int32("C", 3))

    assert not old.jobs
    assert len(scene.models["q"].jobs) == 1


# ---- errors -----------------------------------------------------------------------------------------------------


def test_an_error_of_a_member_keeps_its_kind_and_says_where() -> None:
    scene = Scene(CHAIN)
    scene.send(id="7")
    scene.job("p").fail(Unavailable("unlucky in p"))

    assert isinstance(scene.error, Unavailable)
    assert scene.error.message == "in ensemble 'e', unlucky in p"
    assert scene.answer.id == "7"
    assert scene.calls() == [1, 0, 0]


def test_the_first_error_counts_and_the_rest_is_stopped_and_waited_for() -> None:
    scene = Scene(DIAMOND)
    scene.send()
    scene.job("q").fail(Internal("first"))
    assert scene.job("p").cancelled
    assert not scene.answers

    scene.job("p").fail(Cancelled("second"))
    assert scene.error.message == "in ensemble 'e', first"


def test_an_answer_after_an_error_starts_nothing() -> None:
    scene = Scene(DIAMOND)
    scene.send()
    scene.job("q").fail(Internal("first"))
    scene.job("p").answer(int32("C", 1))

    assert scene.error.message == "in ensemble 'e', first"
    assert scene.calls() == [1, 1, 0]


def test_a_member_that_fails_at_once_stops_those_that_were_to_start_with_it() -> None:
    scene = Scene(DIAMOND)
    scene.models["p"].at_once = lambda job: job.fail(Internal("no"))
    scene.send()

    assert scene.error.message == "in ensemble 'e', no"
    assert scene.calls() == [1, 0, 0]
    assert scene.runner.in_flight() == 0


def test_a_member_that_refuses_the_tensors_is_an_error_of_the_request() -> None:
    scene = Scene(CHAIN)
    scene.send()
    scene.job("p").answer(int32("C", 1, 2, shape=(1, 2)))

    assert isinstance(scene.error, InvalidArgument)
    assert scene.error.message.startswith(
        "in ensemble 'e', [request id: <id_unknown>] unexpected shape for input 'A' for model 'q'. "
        "Expected [-1], got [1,2]"
    )


def test_a_request_fails_if_a_member_was_unloaded() -> None:
    scene = Scene(CHAIN)
    scene.send()
    del scene.models["q"]
    scene.job("p").answer(int32("C", 1))

    assert isinstance(scene.error, NotFound)
    assert scene.error.message == "in ensemble 'e', no q"


def test_a_member_that_has_become_decoupled_waits_for_the_ensemble_to_be_loaded_again() -> None:
    scene = Scene(CHAIN, decoupled=True)
    scene.send()

    assert isinstance(scene.error, Unavailable)
    assert "model 'p' has become decoupled" in scene.error.message


def test_a_missing_input_is_a_deadlock() -> None:
    scene = Scene(CHAIN)
    scene.send(int32("Z", 1), id="7")

    assert isinstance(scene.error, InvalidArgument)
    assert scene.error.message == (
        "in ensemble 'e', [request id: 7] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )


def test_a_request_that_is_cancelled_stops_at_the_members_that_run() -> None:
    scene = Scene(CHAIN)
    ticket = scene.send()
    ticket.cancel()
    assert scene.job("p").cancelled
    assert not scene.answers

    scene.job("p").answer(int32("C", 1))
    assert isinstance(scene.error, Cancelled)
    assert scene.calls() == [1, 0, 0]
    ticket.cancel()
    assert len(scene.answers) == 1
    assert scene.statistics.failures["CANCELED"] == 1


# ---- memory -----------------------------------------------------------------------------------------------------


def test_memory_is_given_back_when_its_last_reader_is_done_and_with_the_answer() -> None:
    scene = Scene(DIAMOND, ["Y", "T"])
    p, q, r = Slot(), Slot(), Slot()
    scene.send()
    scene.job("p").answer(int32("C", 1), lease=p)
    scene.job("q").answer(int32("C", 2), lease=q)
    assert (p.released, q.released) == (0, 0)

    scene.job("r").answer(int32("C", 3), lease=r)
    assert (p.released, q.released, r.released) == (0, 1, 0)

    lease = cast(Lease, scene.answer.lease)
    lease.release()
    lease.release()
    assert (p.released, q.released, r.released) == (1, 1, 1)


def test_memory_between_members_does_not_wait_for_the_answer() -> None:
    scene = Scene(CHAIN + step("r", {"A": "Y"}, {"C": "V"}), ["V"])
    slot = Slot()
    scene.send()
    scene.job("p").answer(int32("C", 1), lease=slot)
    assert slot.released == 0
    scene.job("q").answer(int32("C", 2))

    assert slot.released == 1
    assert not scene.answers


def test_an_answer_from_one_member_carries_its_memory_as_it_is() -> None:
    scene = Scene(CHAIN)
    slot = Slot()
    scene.send()
    scene.job("p").answer(int32("C", 1))
    scene.job("q").answer(int32("C", 2), lease=slot)

    assert scene.answer.lease is slot
    assert slot.released == 0


def test_an_error_gives_all_memory_back() -> None:
    scene = Scene(DIAMOND)
    body, p, q = Slot(), Slot(), Slot()
    scene.send(lease=body)
    scene.job("p").answer(int32("C", 1), lease=p)
    scene.job("q").fail(Internal("no"), lease=q)

    assert scene.error
    assert (body.released, p.released, q.released) == (1, 1, 1)
    assert scene.answer.lease is None


@pytest.mark.parametrize(("outputs", "kept"), [(["Y"], 0), (["Y", "X"], 1)])
def test_the_body_of_the_request_is_kept_for_an_output_that_is_an_input(outputs: list[str], kept: int) -> None:
    scene = Scene(CHAIN, outputs)
    body = Slot()
    scene.send(lease=body)
    scene.job("p").answer(int32("C", 1))
    scene.job("q").answer(int32("C", 2))

    assert body.released == 1 - kept
    if kept:
        assert scene.answer.outputs == [int32("X", 1, 2), int32("Y", 2)]
        assert scene.answer.lease is body


# ---- shapes and labels ------------------------------------------------------------------------------------------


def test_a_member_that_was_loaded_again_is_asked_as_it_is_now() -> None:
    scene = Scene(CHAIN)
    scene.send(int32("X", 1, 2))
    scene.job("p").answer(int32("C", 3))
    scene.job("q").answer(int32("C", 4))
    assert scene.answers.pop().error is None
    scene.models["q"] = Model("q", dims=(5,))
    scene.send(int32("X", 1, 2))
    scene.job("p").answer(int32("C", 3))
    assert "unexpected shape for input 'A' for model 'q'" in scene.error.message


def test_members_that_batch_serve_an_ensemble_that_does_not() -> None:
    scene = Scene(CHAIN, max_batch_size=0, dims="-1")
    scene.models["p"] = Model("p", max_batch_size=4)
    scene.send(int32("X", 1, 2))
    assert scene.job("p").request.inputs[0].shape == (1, 2)

    scene.job("p").answer(int32("C", 3, 4, shape=(1, 2)))
    assert scene.job("q").request.inputs[0].shape == (2,)

    scene.job("q").answer(int32("C", 5, 6))
    assert scene.answer.outputs[0].shape == (2,)


def test_members_that_do_not_batch_serve_an_ensemble_that_does() -> None:
    scene = Scene(CHAIN, max_batch_size=4)
    scene.send(int32("X", 1, 2, shape=(1, 2)))
    scene.job("p").answer(int32("C", 3, 4))
    scene.job("q").answer(int32("C", 5, 6))

    assert scene.answer.outputs[0].shape == (1, 2)


def test_labels_come_from_the_models_that_write_the_tensors() -> None:
    scene = Scene(CHAIN)
    outputs = scene.models["q"].signature.outputs
    outputs["C"] = TensorSpec("C", DataType.INT32, (-1,), labels=("cat", "dog"))

    assert member_labels(ensemble_plan(scene.config), scene.lookup) == {"Y": ("cat", "dog")}


# ---- sequences --------------------------------------------------------------------------------------------------


def test_the_response_carries_the_sequence_parameters() -> None:
    scene = Scene(step("p", {"A": "X"}, {"C": "Y"}))
    scene.send(correlation_id="s", flags=SEQUENCE_START | SEQUENCE_END)
    scene.job("p").answer(int32("C", 1))

    assert scene.answer.parameters == {"sequence_id": "s", "sequence_start": True, "sequence_end": True}


def test_an_answer_without_any_byte_has_no_parameters() -> None:
    scene = Scene(step("p", {"A": "X"}, {"C": "Y"}))
    scene.send()
    scene.job("p").answer(int32("C", shape=(0,)))

    assert scene.answer.outputs[0].shape == (0,)
    assert scene.answer.parameters == {}


def test_a_member_may_choose_the_sequence_that_continues() -> None:
    scene = Scene(CHAIN)
    scene.send(correlation_id=5, flags=SEQUENCE_START)
    scene.job("p").answer(int32("C", 1), parameters={"sequence_id": 8, "sequence_end": True, "other": 1.5})
    asked = scene.job("q").request
    assert (asked.correlation_id, asked.flags) == (8, SEQUENCE_END)
    assert scene.looked_up == [("p", 5, SEQUENCE_START), ("q", 8, SEQUENCE_END)], "a swapped version may have it open"

    scene.job("q").answer(int32("C", 1), parameters={"other": 1.5})
    assert scene.answer.parameters == {"sequence_id": 8, "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"sequence_id": True}, "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or"),
        ({"sequence_end": 1}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_a_member_that_says_it_in_another_type_fails(parameters: dict[str, Parameter], text: str) -> None:
    scene = Scene(CHAIN)
    scene.send()
    scene.job("p").answer(int32("C", 1), parameters=parameters)

    assert isinstance(scene.error, InvalidArgument)
    assert text in scene.error.message


# ---- statistics and the end -------------------------------------------------------------------------------------


def test_a_success_counts_once_with_the_sums_of_its_members() -> None:
    scene = Scene(CHAIN, max_batch_size=4)
    scene.models = {name: Model(name, max_batch_size=4) for name in "pq"}
    scene.send(int32("X", 1, 2, shape=(2, 1)))
    scene.job("p").answer(int32("C", 1, 2, shape=(2, 1)))
    scene.clock.now += 700
    scene.job("q").answer(int32("C", 1, 2, shape=(2, 1)))

    stats = scene.statistics
    assert (stats.inference_count, stats.execution_count, list(stats.batches)) == (2, 1, [2])
    assert (stats.success.count, stats.success.ns, stats.fail.count) == (1, 700, 0)
    assert (stats.queue.count, stats.queue.ns) == (1, 0)
    assert [d.ns for d in (stats.compute_input, stats.compute_infer, stats.compute_output)] == [20, 200, 10]


def test_an_ensemble_in_an_ensemble_hands_its_times_on() -> None:
    scene = Scene(CHAIN)
    times = ComputeTimes()
    scene.send(compute=times)
    scene.job("p").answer(int32("C", 1))
    scene.job("q").answer(int32("C", 1))

    assert (times.input_ns, times.infer_ns, times.output_ns) == (20, 200, 10)


def test_a_failure_counts_twice_as_in_triton() -> None:
    scene = Scene(CHAIN)
    scene.send()
    scene.job("p").fail(Internal("no"))

    stats = scene.statistics
    assert (stats.fail.count, stats.success.count, stats.execution_count) == (2, 0, 0)
    assert stats.failures["OTHER"] == 2


@pytest.mark.parametrize(("first", "last", "count"), [("q", "p", 1), ("p", "q", 2)])
def test_a_failure_counts_once_if_another_step_ends_after_it(first: str, last: str, count: int) -> None:
    scene = Scene(DIAMOND)
    scene.send()
    for name in (first, last):
        if name == "q":
            scene.job(name).fail(Internal("no"))
        else:
            scene.job(name).answer(int32("C", 1))

    assert (scene.statistics.fail.count, scene.statistics.failures["OTHER"]) == (count, count)


def test_a_member_that_answers_cancelled_counts_as_other_because_the_client_did_not_cancel() -> None:
    scene = Scene(CHAIN)
    scene.send()
    scene.job("p").fail(Cancelled("no"))

    assert isinstance(scene.error, Cancelled)
    assert (scene.statistics.failures["OTHER"], scene.statistics.failures["CANCELED"]) == (2, 0)


def test_a_stopped_ensemble_answers_what_it_accepted_and_refuses_the_rest() -> None:
    scene = Scene(CHAIN)
    idle: list[bool] = []
    scene.send()
    scene.runner.stop(lambda: idle.append(True))
    scene.send()
    assert isinstance(scene.error, Unavailable)
    assert "Server is stopping" in scene.error.message
    assert (idle, scene.runner.in_flight()) == ([], 1)

    scene.job("p").answer(int32("C", 1))
    scene.job("q").answer(int32("C", 1))
    assert scene.answers[1].error is None
    assert (idle, scene.runner.in_flight()) == ([True], 0)


def test_an_ensemble_without_requests_stops_at_once() -> None:
    idle: list[bool] = []
    Scene(CHAIN).runner.stop(lambda: idle.append(True))

    assert idle == [True]


@pytest.mark.parametrize("at", ["lookup", "submit"])
def test_an_unexpected_error_of_a_step_fails_the_request_and_releases_its_count(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(DIAMOND)

    def fail(*arguments: object, **more: object) -> Served:
        raise RuntimeError("boom")

    if at == "lookup":
        scene.models["q"].signature = None  # type: ignore[assignment]
    else:
        scene.models["q"].submit = fail  # type: ignore[assignment]
    scene.send()
    assert scene.runner.in_flight() == 1, "the step beside it still reads the tensors"
    scene.job("p").answer(int32("C", 1))
    assert "failed unexpectedly" in scene.error.message
    idle: list[bool] = []
    scene.runner.stop(lambda: idle.append(True))
    assert idle == [True], "an unload would wait for ever"
    assert scene.runner.in_flight() == 0
    assert "Traceback" in caplog.text
