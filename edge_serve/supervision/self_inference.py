"""Periodic self-test: sends a request to each idle model, to find workers that run but no longer answer.

A process may be alive, send heartbeats, and have lost its device context: every request fails, and only a new process
helps. The request is a sample of the model's golden test, else the first sample of its `model_warmup`, else zeros. A
model is compared with its own past: one that answered before and does not now is restarted, and not ready until it
answers. One that never answered the request is excused. A wrong answer to a golden test counts as none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import gathered
from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument, Unavailable
from edge_serve.golden.reader import GoldenTest
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.golden import converse, read_limited, request_of
from edge_serve.models.load.warmup import make_requests, zeros
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.records import slotted

log = logging.getLogger(__name__)

#: so many models are tested at once, and the next ones that much later, seconds
AT_ONCE, APART = 4, 0.005
#: how long an answer may take, seconds
PATIENCE = 30.0

#: why a model is restarted, and why the log says so
_FAILS = "fails on a request that it has answered before"
_FAILS_NOW = "has answered its own question before and fails now"
_WRONG = "fails its golden test, which it has passed before"


@slotted
class _Patient:
    """The test results of a version.

    Attributes:
        answered: how many requests it had answered at the last test.
        proven: whether it has answered the request once.
        excused: whether it is not tested any more.
        turn: the number of its next golden sample.
    """

    answered: int
    proven: bool = False
    excused: bool = False
    turn: int = 0


class SelfInference:
    """Tests every version that serves, in turn.

    Args:
        interval: seconds between tests of one model.
    """

    def __init__(self, served: Callable[[], Iterable[Served]], interval: float) -> None:
        self._served = served
        self._interval = interval
        self._patients: dict[Served, _Patient] = {}

    async def run(self) -> None:
        """Test until cancelled."""
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("self-inference: a round failed; the next one follows in %g s", self._interval)
            await asyncio.sleep(self._interval)

    async def round(self) -> None:
        """Test each version that has answered no client since the last round."""
        known = self._patients
        patients = await gathered((one, known.get(one) or _Patient(_answers(one))) for one in self._served())
        self._patients = dict(patients)
        visits: list[asyncio.Task[None]] = []
        try:
            for number, (one, patient) in enumerate(patients, 1):
                visits.append(asyncio.ensure_future(self._visit(one, patient)))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(APART)
            await asyncio.gather(*visits)
        finally:
            for visit in visits:
                visit.cancel()

    async def _visit(self, served: Served, patient: _Patient) -> None:
        """Test one version. An unexpected error is logged, so that the other versions are tested all the same."""
        try:
            await self._test_if_idle(served, patient)
        except Exception:
            log.exception("self-inference of model %s failed", served.name, extra=_about(served))

    async def _test_if_idle(self, served: Served, patient: _Patient) -> None:
        busy = _answers(served) > patient.answered
        patient.answered = _answers(served)
        if busy and served.golden is None:
            served.health.report_success()
        busy = busy and not served.health.failure  # it answers, but its answers may be wrong
        if busy or patient.excused or served.leaving or served.opened is None or not served.opened.complete:
            return
        if served.golden is not None and not served.config.HasField("sequence_batching"):
            await self._test_golden(served, served.golden, patient)
            return
        try:
            question = await offload(_question, served)
        except EdgeServeError as bad:
            self._excuse(served, patient, bad.message)
            return
        if question is None:
            patient.excused = True
            return
        error = await _send(served, question, min(self._interval, PATIENCE))
        patient.answered = _answers(served)
        self._judge(served, patient, error)

    async def _test_golden(self, served: Served, test: GoldenTest, patient: _Patient) -> None:
        """Send one sample of a golden test, which the version passed when it was loaded."""
        past_cache = _past_cache(served)
        if past_cache is None:
            return
        sample = test.samples[patient.turn % len(test.samples)]
        patient.proven = True
        error: EdgeServeError | None = None
        try:
            request = await read_limited(request_of, sample, served.signature)
        except InvalidArgument as bad:
            self._excuse(served, patient, bad.message)
            return
        except Unavailable:  # the disk does not answer
            return
        behind = served.runner.in_flight()
        try:
            figures = await converse(past_cache, sample, request, min(self._interval, PATIENCE))
            if figures.problems:
                error = EdgeServeError("; ".join(figures.problems))
        except EdgeServeError as failure:
            if behind:  # as in `_send`
                return
            error = failure
        patient.answered = _answers(served)
        patient.turn += error is None  # a sample that fails is asked again
        self._judge(served, patient, error)

    def _judge(self, served: Served, patient: _Patient, error: EdgeServeError | None) -> None:
        if error is None:
            patient.proven = True
            if served.health.failure:
                served.health.report_success()
                log.info("model %s answers again", served.name, extra=_about(served))
        elif isinstance(error, (Unavailable, Cancelled)):
            return  # refused by its queue, behind others there, or its worker was lost, which is handled elsewhere
        elif not patient.proven:
            self._excuse(served, patient, error.message)
        elif served.opened is not None:
            said, reason, detail = _FAILS_NOW, _FAILS, ""
            if served.golden is not None:
                said = reason = _WRONG
                detail = f": {error.message}"
            served.health.report_failure(f"it {reason} (--self-inference-interval-secs){detail}")
            log.error(f"model %s {said}: %s", served.name, error.message, extra=_about(served))
            served.opened.restart(f"it {reason}: {error.message}")

    def _excuse(self, served: Served, patient: _Patient, reason: str) -> None:
        patient.excused = True
        if served.golden is not None:
            text = "model %s is not asked by the server itself: %s; repair the golden test, and load the model again"
            log.warning(text, served.name, reason, extra=_about(served))
            return
        text = "model %s is not asked by the server itself, because it does not take %s (%s); give it a model_warmup"
        what = "the first sample of its model_warmup" if served.config.model_warmup else "zeros"
        log.warning(text, served.name, what, reason, extra=_about(served))


def _about(served: Served) -> dict[str, str]:
    return model_fields(served.name, served.version)


def _answers(served: Served) -> int:
    """Return how many requests the model itself has answered; answers from the cache say nothing about it."""
    return served.statistics.success.count - served.statistics.cache_hit.count


def _question(served: Served) -> InferRequest | None:
    """Return a request that `served` should be able to answer; None = it is not tested.

    Not tested are ensembles (their members are), sequences (one would have to be started), and decoupled models without
    a sample (their responses to zeros may never end).

    Raises:
        EdgeServeError: its sample cannot be made, or does not fit.
    """
    config = served.config
    if config.HasField("ensemble_scheduling") or config.HasField("sequence_batching"):
        return None
    if served.signature.decoupled and not config.model_warmup:
        return None
    sample = config.model_warmup[0] if config.model_warmup else zeros(config)
    requests = make_requests(config, sample, served.directory)
    if not requests:
        return None
    validate(requests[0], served.signature)
    return requests[0]


def _past_cache(served: Served) -> Served | None:
    """Return the version without its response cache; None while it is being swapped."""
    if served.swapping:
        return None
    return served if served.cache is None else replace(served, cache=None)


async def _send(served: Served, question: InferRequest, seconds: float) -> EdgeServeError | None:
    """Return the error instead of an answer; None = it answered."""
    done: asyncio.Future[EdgeServeError | None] = asyncio.get_running_loop().create_future()

    def on_response(response: InferResponse) -> None:
        if response.lease is not None:
            response.lease.release()
        if not done.done() and (response.final or response.error is not None):
            done.set_result(response.error)

    past_cache = _past_cache(served)
    if past_cache is None:
        return Unavailable("it is being swapped")
    behind = served.runner.in_flight()
    ticket = past_cache.submit(question, on_response)
    try:
        return await asyncio.wait_for(asyncio.shield(done), seconds)
    except asyncio.TimeoutError:
        ticket.cancel()
        if behind:  # clients' requests before it may take longer; `HangWatch` finds those that hang
            return Unavailable(f"it waited {seconds:g} s behind other requests")
        return EdgeServeError(f"no answer came within {seconds:g} s")
