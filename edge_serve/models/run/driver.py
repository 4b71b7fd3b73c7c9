"""The driver around a scheduler: owns the clock and the wake-ups, and sends the batches that it decides on to workers.

There is one driver per version. Everything runs on the event loop's thread, in callbacks; a request costs no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from edge_serve.aio.tasks import log_failure, notify
from edge_serve.backends.base import Reply
from edge_serve.clock import Clock
from edge_serve.errors import Cancelled, EdgeServeError
from edge_serve.messages.infer import InferRequest, InferResponse, Lease
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.run import statistics as record
from edge_serve.models.run.controls import Controls
from edge_serve.models.run.outage import WorkerOutage
from edge_serve.models.run.runner import Executors, OnResponse, Runner
from edge_serve.models.run.shared_lease import shares
from edge_serve.scheduling.core import Entry, Run, Scheduler, Wait
from edge_serve.scheduling.ordering import ResponseOrder
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.link import ModelListener

Order = ResponseOrder[tuple[OnResponse, InferResponse]]

#: the time from a decision that failed to the next one
RETRY_NS = 1_000_000_000


class Job(Entry):
    """A request in the driver: the scheduler's entry, and the callback for its responses."""

    __slots__ = ("batch_id", "driver", "on_response", "place", "position")

    def __init__(
        self,
        driver: Driver,
        request: InferRequest,
        rows: int,
        shape_key: Hashable,
        now_ns: int,
        on_response: OnResponse,
    ) -> None:
        super().__init__(request, rows, shape_key, now_ns)
        self.driver = driver
        self.on_response = on_response
        self.batch_id = 0
        self.position = 0
        #: in the order of responses; -1 = it is not in a batch
        self.place = -1

    def cancel(self) -> None:
        self.driver.cancel(self)

    def set_paused(self, paused: bool) -> bool:
        return self.driver.set_paused(self, paused)

    def jobs(self) -> Sequence[Job]:
        return (self,)


class Driver(Runner, ModelListener):
    """Runs one version, and is the listener of its opened model.

    Args:
        order: delays responses until their turn, when the configuration asks for `preserve_ordering`.

    Attributes:
        controls: the control tensors of a model with `sequence_batching`.
        counts_responses: keep `response_stats` of a decoupled model. Triton's Python backend reports none.
        held: requests of batches that wait in the rate limiter: pending, though their batch was sent.
    """

    def __init__(
        self,
        name: str,
        version: str,
        scheduler: Scheduler,
        statistics: ModelStatistics,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        order: Order | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.statistics = statistics
        self.model: Executors
        self.controls: Controls | None = None
        self.counts_responses = False
        self.held = 0
        self._scheduler = scheduler
        self._order = order
        self._clock = clock
        self._loop = loop
        self._batches: dict[int, tuple[int, list[Job]]] = {}
        self._next_batch = 1
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._on_idle: Callable[[], None] | None = None
        self._is_stateful = scheduler.is_stateful
        #: receives the times of executions; None = they do not matter
        self._pace: Callable[[int], None] | None = scheduler.pace
        #: whether it is idle only when its open sequences have ended
        self._awaits_sequences = False
        self._gathering = False
        #: whether an instance takes its next batch while one runs
        self._has_seats = False
        #: instances that get no new work -> what to call when they have none left
        self._retiring: dict[int, Callable[[], None]] = {}
        self._outage = WorkerOutage(name, loop, self._on_outage)

    def join(self, model: Executors) -> None:
        """Connect the instances that run the batches."""
        self.model = model
        for instance in model.numbers:
            self._add_seats(instance)

    def _add_seats(self, instance: int) -> None:
        if self.model.seats(instance) > 1:
            self._has_seats = True
            self._scheduler.add_second_seat(instance)

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Job:
        """See `Runner`."""
        now = self._clock.now_ns()
        job = Job(self, request, rows, shape_key, now, on_response)
        if self._outage.is_long:
            self._fail(job, self._outage.error(), record.REJECTED)
            return job
        try:
            self._scheduler.add(job, now)
        except Cancelled as error:  # an earlier request of its sequence was cancelled
            self._fail(job, error, record.CANCELED)
            return job
        except EdgeServeError as error:  # not counted, as in Triton (core src/infer_request.cc, InferenceRequest::Run)
            self._deliver(job, Reply(error=error), None)
            return job
        self.statistics.pending += 1
        self._on_arrival(request)
        return job

    def cancel(self, job: Job) -> None:
        """Remove a queued request, or tell the worker that the client of a running one has disconnected."""
        if self._scheduler.cancel(job):
            self.statistics.pending -= 1
            self._fail(job, Cancelled(""), record.CANCELED)
            self._pump()
            self._check_idle()
        elif (batch := self._batches.get(job.batch_id)) is not None:
            self.model.cancel(batch[0], job.batch_id, job.position)

    def set_paused(self, job: Job, paused: bool) -> bool:
        """Return False: a single response cannot be paused."""
        return False

    def places(self, job: Job) -> Collection[int]:
        """Return the instances that may answer a request: the one that runs it, or all while it is queued."""
        batch = self._batches.get(job.batch_id)
        return self.model.numbers if batch is None else (batch[0],)

    def running(self, batch_id: int, position: int) -> InferRequest | None:
        """Return the request at a position of a running batch."""
        jobs = self._batches.get(batch_id, (0, []))[1]
        return next((job.request for job in jobs if job.position == position), None)

    def run_one_by_one(self) -> None:
        """Send each request alone from now on. The model calls others, so a queued request must be free to use a second
        instance."""
        if self._pace is not None:
            self._pace(1 << 40)  # an execution so long that no two requests share a hop
            self._pace = None

    def add_instance(self, instance: int, *, passive: bool = False) -> None:
        """Add an instance. No other had its number before."""
        self._scheduler.add_instance(instance, passive=passive)
        self._add_seats(instance)
        self._outage.update(self._scheduler.is_lost())
        self._pump()

    def retire_instance(self, instance: int, on_free: Callable[[], None]) -> None:
        """Give no new work to an instance. `on_free` is called once it has none left and its sequences have ended."""
        self._retiring[instance] = on_free
        self._scheduler.retire_instance(instance)
        self._pump()
        self._check_retired()

    def _check_retired(self) -> None:
        for instance in [one for one in self._retiring if not self._works(one)]:
            self._loop.call_soon(self._retiring.pop(instance))
        self._outage.update(self._scheduler.is_lost())

    def _works(self, instance: int) -> bool:
        """Return whether an instance that retires may still get work, or has unfinished work."""
        return self._scheduler.has_instance(instance)

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        """See `Runner`."""
        self._scheduler.stop()
        self._on_idle = on_idle
        self._awaits_sequences = sequences
        if sequences:
            self._pump()  # starts the clocks of idle sequences
        self._check_idle()

    def fail_all(self, error: EdgeServeError) -> None:
        """See `Runner`."""
        self._awaits_sequences = False
        self._fail_queued(error)
        self.on_lost(dict.fromkeys(self.model.numbers, error))
        self._outage.stop()

    def has_sequence(self, correlation_id: int | str) -> bool:
        """See `Runner`."""
        return self._scheduler.has_sequence(correlation_id)

    def open_sequences(self) -> int:
        """See `Runner`."""
        return self._scheduler.open_sequences()

    def end_sequence(self, correlation_id: int | str) -> None:
        """See `Runner`."""
        if self._is_stateful:
            self._scheduler.end_sequence(correlation_id)
            self._pump()
            self._check_idle()

    def ignore_sequences(self) -> None:
        """See `Runner`."""
        self._awaits_sequences = False
        self._check_idle()

    def in_flight(self) -> int:
        """See `Runner`."""
        return self.statistics.pending - self.held + sum(len(jobs) for _, jobs in self._batches.values())

    def oldest_batch_seconds(self) -> float | None:
        """See `Runner`."""
        since_ns = self._running_since_ns()
        return None if since_ns is None else (self._clock.now_ns() - since_ns) / 1e9

    def _running_since_ns(self) -> int | None:
        return self.model.running_since_ns() if self._batches else None

    def find_stall(self) -> int | None:
        """See `Runner`."""
        scheduler = self._scheduler
        if self._is_stateful or not scheduler.pending() or self._batches or not scheduler.has_idle():
            return None
        is_waiting = self._timer is not None and self._timer_ns > self._clock.now_ns()
        return None if is_waiting else self._next_batch

    def wake(self) -> None:
        """See `Runner`."""
        self._pump()

    # ---- events from the worker ---------------------------------------------------------------------------------

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """Answer the requests of a batch that is done; its instance gets the next one before that, except after short
        executions."""
        jobs = self._batches.pop(reply.batch_id)[1]
        if reply.unsent and self._is_stateful:
            for job in jobs:
                if job.position in reply.unsent:
                    self._scheduler.undo(job)
        if not reply.last:
            if self._has_seats:
                self._scheduler.ran(instance, reply.input_end_ns, reply.end_ns)
            self._scheduler.done(instance)
            if reply.each:  # short executions: first the answers, because waking the worker may take the core from them
                self._pump_soon()
            elif self.statistics.pending or self._is_stateful:
                self._pump()
        self._answer(jobs, reply)
        self._check_idle()

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """Fail the batches of instances whose worker died. The instances get no work until `on_back`.

        The next decision is made in a later turn of the loop, because further instances of the version may be lost in
        this one.
        """
        for instance in lost:
            self._scheduler.lost(instance)
        self._outage.update(self._scheduler.is_lost())
        for key in [key for key, (instance, _) in self._batches.items() if instance in lost]:
            instance, jobs = self._batches.pop(key)
            for job in jobs:
                self._fail(job, lost[instance], record.BACKEND)
        self._pump_soon()
        self._check_idle()

    def on_back(self, instance: int) -> None:
        """Give work to an instance whose worker was restarted."""
        self._scheduler.back(instance)
        self._outage.update(self._scheduler.is_lost())
        self._add_seats(instance)
        self._pump()

    def _on_outage(self) -> None:
        """Fail the queued requests: the version has had no worker for too long."""
        self._fail_queued(self._outage.error())
        self._check_idle()

    # ---- acting on decisions ------------------------------------------------------------------------------------

    def _on_arrival(self, request: InferRequest) -> None:
        """Ask the scheduler after a request was queued."""
        if request.compute is None and not self._scheduler.gathers:
            self._pump()
        else:  # more arrive in this turn of the loop: from the same read, or from the same batch of an ensemble's step
            self._pump_soon()

    def _pump(self) -> None:
        now = self._clock.now_ns()
        decide = self._scheduler.next
        while True:
            decision = decide(now)
            if isinstance(decision, Run):
                self._run(decision)
            elif isinstance(decision, Wait):
                self._wake_at(decision.until_ns, now)
                if self._on_idle is not None or self._retiring:
                    self._check_idle()
                return
            else:
                self.statistics.pending -= 1
                reason = record.failure_reason(decision.error, executed=False)
                self._fail(decision.entry, decision.error, reason)  # type: ignore[arg-type]

    def _pump_soon(self) -> None:
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._pump_gathered)

    def _pump_gathered(self) -> None:
        self._gathering = False
        self._pump_or_retry()

    def _run(self, run: Run) -> list[Job]:
        jobs: list[Job] = run.entries  # type: ignore[assignment]  # every entry added here is a Job
        batch_id = self._next_batch
        self._next_batch += 1
        for position, job in zip(run.slots if run.rows else range(len(jobs)), jobs, strict=True):
            job.batch_id = batch_id
            job.position = position
            if self._order is not None:
                job.place = self._order.enter()
        self.statistics.pending -= len(jobs)
        self._batches[batch_id] = (run.instance, jobs)
        self._begins(run.instance, batch_id, jobs)
        requests = [job.request for job in jobs] if self.controls is None else self.controls.requests(run)
        self.model.execute(run.instance, batch_id, requests, run.each)
        return jobs

    def grow(self, batch_id: int) -> list[InferRequest]:
        """Add queued requests to a batch that `execute` received and has not sent to its worker. Return them."""
        jobs = self._batches[batch_id][1]
        more: list[Job] = self._scheduler.grow(jobs)  # type: ignore[assignment]  # every entry added here is a Job
        for position, job in enumerate(more, len(jobs)):
            job.batch_id = batch_id
            job.position = position
            if self._order is not None:
                job.place = self._order.enter()
        self.statistics.pending -= len(more)
        jobs += more
        return [job.request for job in more]

    def _begins(self, instance: int, batch_id: int, jobs: list[Job]) -> None:
        """Prepare for a batch that is about to be executed."""

    def _wake_at(self, until_ns: int | None, now_ns: int) -> None:
        """Set the timer. An earlier one stays, because a needless decision costs less than a new timer."""
        if until_ns is None or (self._timer is not None and self._timer_ns <= until_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = until_ns
        self._timer = self._loop.call_later(max(0, until_ns - now_ns) / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump_or_retry()

    def _pump_or_retry(self) -> None:
        """Decide in a callback of the loop. If that fails, log the exception and decide again after RETRY_NS: maybe no
        other event follows."""
        try:
            self._pump()
        except Exception:
            log_failure(self._pump)
            now = self._clock.now_ns()
            self._wake_at(now + RETRY_NS, now)

    def _check_idle(self) -> None:
        if self._retiring:
            self._check_retired()
        if (
            self._on_idle is not None
            and not self.in_flight()
            and not (self._awaits_sequences and self.open_sequences())
        ):
            on_idle, self._on_idle = self._on_idle, None
            self._loop.call_soon(on_idle)
            for on_free in self._retiring.values():  # the model ends, and with it their sequences
                self._loop.call_soon(on_free)
            self._retiring.clear()

    # ---- answering ----------------------------------------------------------------------------------------------

    def _answer(self, jobs: list[Job], reply: BatchReply) -> None:
        """Answer the requests of a batch, then record it: no client can ask for statistics before this returns."""
        now = self._clock.now_ns()
        marks = (reply.compute_start_ns, reply.input_end_ns, reply.output_start_ns, reply.end_ns)
        if self._pace is not None:
            self._pace((reply.end_ns - reply.compute_start_ns) // len(jobs))
        if reply.each:
            marks = record.share(marks, len(jobs))
        leases = [reply.lease] if len(jobs) == 1 else shares(reply.lease, len(jobs))
        results = [reply.replies[job.position] for job in jobs]
        for job, result, lease in zip(jobs, results, leases, strict=True):
            if job.request.compute is not None and (result.error is None or result.answered):
                job.request.compute.add(*marks)
            self._deliver(job, result, lease)
        record.record_replies(self.statistics, jobs, results, reply, marks, now)

    def _deliver(self, job: Job, reply: Reply, lease: Lease | None) -> None:
        response = InferResponse(
            self.name, self.version, job.request.id, reply.outputs, reply.parameters, reply.error, True, lease
        )
        if reply.personal:
            response.personal = True
        self._send(job, response)

    def _send(self, job: Job, response: InferResponse) -> None:
        request = job.request
        if response.final and request.lease is not None:
            request.lease.release()
        if self._order is None or job.place < 0:
            try:  # as `notify`, without a call for each response
                job.on_response(response)
            except Exception:
                log_failure(job.on_response)
            return
        for on_response, ready in self._order.ready(job.place, (job.on_response, response), response.final):
            notify(on_response, ready)

    def _fail_queued(self, error: EdgeServeError) -> None:
        for entry in self._scheduler.drain():
            self.statistics.pending -= 1
            self._fail(entry, error, record.REJECTED)  # type: ignore[arg-type]

    def _fail(self, job: Job, error: EdgeServeError, reason: str) -> None:
        record.record_failure(self.statistics, reason, self._clock.now_ns() - job.arrival_ns)
        self._deliver(job, Reply(error=error), None)
