"""The drivers of models with sequences, and of iterative models.

A client sends the next request of a sequence when it has the response to the last one, at the same time as the other
clients of that batch. A decision at the first arrival would run it alone and let the others wait for the next batch.

A request of an iterative model may run several times before it is answered. Rules: triton-inference-server/core
src/sequence_batch_scheduler/sequence_utils.cc (IterativeSequencer). A model sends a request back with
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE; it keeps its slot, loses its START, and runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_serve.backends.base import Reply
from edge_serve.errors import Cancelled, EdgeServeError
from edge_serve.messages.infer import InferRequest, Lease
from edge_serve.models.run.decoupled import DecoupledDriver
from edge_serve.models.run.driver import Driver, Job
from edge_serve.scheduling.core import Run
from edge_serve.scheduling.sequence.sequences import SequenceScheduler
from edge_serve.workers.front.frames.batch import BatchReply


class SequenceDriver(Driver):
    """Runs one version; decides once for all requests that the event loop has ready."""

    def _on_arrival(self, request: InferRequest) -> None:
        """Schedule a decision, unless every instance is busy: then the end of a batch decides, or the request's own
        clock."""
        if self._scheduler.has_idle() or request.deadline_ns or request.timeout_us:
            self._pump_soon()


class IterativeDriver(Driver):
    """Runs one version of an iterative model that answers each request once. Takes the arguments of `Driver`."""

    _scheduler: SequenceScheduler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: requests that are queued to run again -> the instance of their last run, and their position in what it got
        self._again: dict[Job, tuple[int, int]] = {}
        #: running requests whose clients have disconnected
        self._unwanted: set[Job] = set()

    def cancel(self, job: Job) -> None:
        """Remove a request that waits, also for its next run. A request that runs will not run again."""
        if job in self._again:
            Driver.cancel(self, job)
            return
        if job.batch_id in self._batches:
            self._unwanted.add(job)
        super().cancel(job)

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """Queue the requests that are to run again before the instance is idle, so that they keep their slots; then
        answer."""
        jobs = self._batches.pop(reply.batch_id)[1]
        for job in jobs:
            if reply.replies[job.position].rescheduled:
                self._send_back(job, instance, reply)
        self._unwanted.difference_update(jobs)
        self._answer(jobs, reply)
        now = self._clock.now_ns()
        for job in jobs:
            if job in self._again:  # after its run was recorded, which began at its last arrival
                job.arrival_ns = now
        if not reply.last:
            self._scheduler.done(instance)
        self._pump()
        self._check_idle()

    def _send_back(self, job: Job, instance: int, reply: BatchReply) -> None:
        if job in self._unwanted:
            reply.replies[job.position] = Reply(error=Cancelled(""))
        else:
            if self.controls is not None:
                self.controls.remove(job.request)
            self._scheduler.reschedule(job)
            self.statistics.pending += 1
            self._again[job] = instance, job.position - sum(unsent < job.position for unsent in reply.unsent)

    def _run(self, run: Run) -> list[Job]:
        jobs = super()._run(run)
        for job in jobs:
            self._again.pop(job, None)
        return jobs

    def _deliver(self, job: Job, reply: Reply, lease: Lease | None) -> None:
        if not reply.rescheduled:
            super()._deliver(job, reply, lease)
        elif lease is not None:
            lease.release()

    def _fail(self, job: Job, error: EdgeServeError, reason: str) -> None:
        last = self._again.pop(job, None)
        if last is not None:  # the model may have kept its response sender
            instance, position = last
            self.model.cancel(instance, job.batch_id, position)
        self._unwanted.discard(job)
        super()._fail(job, error, reason)


class IterativeDecoupledDriver(IterativeDriver, DecoupledDriver):
    """Runs an iterative model that is decoupled. The stream of a request stays open for all of its runs.

    As in Triton, a request that has its last response still runs as often as the model reschedules it: the model may
    release there what it keeps of the request. Takes the arguments of `Driver`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: batch ID and position of a stream in its last run -> in its new run, until the batch of the new run is done.
        #: A thread of the model sends as of the last run until the worker starts the new one.
        self._moved: dict[tuple[int, int], tuple[int, int]] = {}
        #: requests that have their last response and may run again -> the memory of their inputs
        self._leases: dict[Job, Lease] = {}

    def on_partial(
        self, instance: int, batch_id: int, index: int, reply: Reply | None, final: bool, lease: Lease | None
    ) -> None:
        """See `DecoupledDriver`."""
        batch_id, index = self._moved.get((batch_id, index), (batch_id, index))
        super().on_partial(instance, batch_id, index, reply, final, lease)

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """See `IterativeDriver`."""
        super().on_reply(instance, reply)
        self._discard_moved()

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """See `DecoupledDriver`."""
        super().on_lost(lost)
        self._discard_moved()

    def _discard_moved(self) -> None:
        """Discard the entries of batches that are done: the worker sends in order."""
        self._moved = {old: new for old, new in self._moved.items() if new[0] in self._batches}

    def _release_request(self, job: Job) -> None:
        """See `DecoupledDriver`. One that may run again keeps its memory until `_deliver` ends its runs."""
        lease = job.request.lease
        if lease is not None and (job in self._again or job.batch_id in self._batches):
            self._leases[job], job.request.lease = lease, None
        else:
            super()._release_request(job)

    def _deliver(self, job: Job, reply: Reply, lease: Lease | None) -> None:
        super()._deliver(job, reply, lease)
        if not reply.rescheduled and (inputs := self._leases.pop(job, None)) is not None:
            inputs.release()

    def _is_limited(self, job: Job) -> bool:
        """See `DecoupledDriver`. One that waits for its next run is not: each run has the whole time."""
        return job not in self._again

    def _run(self, run: Run) -> list[Job]:
        again = [(job, job.batch_id, job.position) for job in self._again.keys() & run.entries]
        jobs = super()._run(run)
        for job, batch_id, position in again:
            stream = self._stream(batch_id, position)
            self._close(batch_id, position)
            if stream is not None:
                streams = self._open[job.batch_id].streams
                stream.inputs = streams[job.position].inputs  # of this run
                streams[job.position] = stream
                self._moved[batch_id, position] = (job.batch_id, job.position)
            else:  # it has its last response already
                self._close(job.batch_id, job.position)
        return jobs
