"""The driver of a decoupled model: a request has any number of responses, perhaps long after its batch is done.

The batch's own reply says that the instance is idle again, and carries times and errors. Statistics of requests are
taken from it, as in Triton, so a request counts once the model's `execute` has returned. Until then the model may read
the inputs, also of a request that has its last response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from edge_serve.aio.pausable_deadline import PausableDeadline
from edge_serve.backends.base import Reply
from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import InferRequest, InferResponse, Lease
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.run import statistics as record
from edge_serve.models.run.driver import Driver, Job, Order
from edge_serve.records import slotted
from edge_serve.scheduling.core import Run, Scheduler
from edge_serve.workers.front.frames.batch import BatchReply


@slotted
class _Stream:
    """A request whose last response is still to come.

    Attributes:
        count: its responses so far.
        since_ns: when the last response arrived, or the request was sent to the model.
        inputs: the memory to which the channel has moved its inputs.
    """

    job: Job
    count: int
    since_ns: int
    inputs: Lease | None = None


@slotted
class _Open:
    """The open streams of one batch, by position in the batch.

    Attributes:
        deadline: ends after the model's `execution_timeout_ms`. It starts when `execute` has returned; until then, the
            channel limits the batch.
    """

    instance: int
    streams: dict[int, _Stream]
    since_ns: int
    deadline: PausableDeadline | None = None

    def is_paused(self) -> bool:
        """Return whether a stream is paused: the time does not count."""
        return any(stream.job.request.paused for stream in self.streams.values())

    def update_deadline(self) -> None:
        """Pause or resume the timeout, after a stream was paused or resumed, or has ended."""
        if self.deadline is not None:
            self.deadline.set_paused(self.is_paused())

    def cancel_deadline(self) -> None:
        """Cancel the timeout: all streams have ended."""
        if self.deadline is not None:
            self.deadline.cancel()


class DecoupledDriver(Driver):
    """Runs one version of a decoupled model. Takes the arguments of `Driver`."""

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
        super().__init__(name, version, scheduler, statistics, clock, loop, order)
        self._pace = None
        self._open: dict[int, _Open] = {}
        #: running batch -> the memory of inputs of its streams that have ended
        self._ended: dict[int, list[Lease]] = {}

    def cancel(self, job: Job) -> None:
        """Remove a queued request, or tell the worker that the client of a running one has disconnected."""
        opened = self._open.get(job.batch_id)
        if opened is None:
            super().cancel(job)
        elif job.position in opened.streams:
            self.model.cancel(opened.instance, job.batch_id, job.position)
            self.set_paused(job, False)

    def set_paused(self, job: Job, paused: bool) -> bool:
        """Pause or resume a stream; see `Ticket.set_paused`. A queued request is paused when it is sent to the
        worker."""
        opened = self._open.get(job.batch_id)
        if job.request.paused is not paused:
            job.request.paused = paused
            if opened is not None and job.position in opened.streams:
                self.model.set_paused(opened.instance, job.batch_id, job.position, paused)
                opened.update_deadline()
        return True

    def in_flight(self) -> int:
        """Return the requests whose last response is still to come, and those whose batch still runs."""
        open_after = sum(len(opened.streams) for key, opened in self._open.items() if key not in self._batches)
        return super().in_flight() + open_after

    def _running_since_ns(self) -> int | None:
        """Return the start of the oldest batch. A batch runs until all its streams have ended, even if `execute` has
        returned."""
        times = [opened.since_ns for opened in self._open.values()]
        since_ns = super()._running_since_ns()
        return min(times if since_ns is None else [since_ns, *times], default=None)

    # ---- events from the worker ---------------------------------------------------------------------------------

    def on_placed(self, instance: int, batch_id: int, index: int, lease: Lease) -> bool:
        """Keep the memory to which the channel moved inputs; see `ModelListener`."""
        stream = self._stream(batch_id, index)
        if stream is not None:
            stream.inputs = lease
        return stream is not None

    def on_partial(
        self, instance: int, batch_id: int, index: int, reply: Reply | None, final: bool, lease: Lease | None
    ) -> None:
        """Deliver a response, or end a stream without one. Responses after the final one are discarded."""
        stream = self._stream(batch_id, index)
        if stream is None:
            if lease is not None:
                lease.release()
            return
        if final:
            self._close(batch_id, index)
            self._release_request(stream.job)
        response = self._response(stream.job, Reply() if reply is None else reply, final, lease, reply is None)
        now = self._clock.now_ns()
        if reply is not None and reply.error is not None:
            self.statistics.model_errors += 1
        self._send(stream.job, response)
        if self.counts_responses:
            end = self._clock.now_ns()
            record.record_response(self.statistics, stream.count, response, stream.since_ns, now, end)
            stream.since_ns = end
        stream.count += 1
        if final:
            self._check_idle()

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """Fail all open streams of instances whose worker died."""
        super().on_lost(lost)
        for batch_id in [key for key in self._ended if key not in self._batches]:
            self._release_ended(batch_id)
        for key in [key for key, opened in self._open.items() if opened.instance in lost]:
            opened = self._open.pop(key)
            opened.cancel_deadline()
            for stream in opened.streams.values():
                self._release(key, stream.inputs)
                self._send(stream.job, self._response(stream.job, Reply(error=lost[opened.instance]), True, None))
        self._check_idle()

    def grow(self, batch_id: int) -> list[InferRequest]:
        """Return nothing: the streams of a batch open with it."""
        return []

    def _works(self, instance: int) -> bool:
        return super()._works(instance) or any(opened.instance == instance for opened in self._open.values())

    def _run(self, run: Run) -> list[Job]:
        jobs = super()._run(run)
        for job in jobs:
            if job.request.paused:  # while it was queued
                self.model.set_paused(run.instance, job.batch_id, job.position, True)
        return jobs

    # ---- inside -------------------------------------------------------------------------------------------------

    def _begins(self, instance: int, batch_id: int, jobs: list[Job]) -> None:
        now = self._clock.now_ns()
        streams = {job.position: _Stream(job, 0, now) for job in jobs}
        self._open[batch_id] = _Open(instance, streams, now)

    def _stream(self, batch_id: int, position: int) -> _Stream | None:
        opened = self._open.get(batch_id)
        return opened.streams.get(position) if opened is not None else None

    def _on_overrun(self, batch_id: int) -> None:
        """Fail the streams that are still open after `execution_timeout_ms`."""
        opened = self._open[batch_id]
        late = [(position, stream) for position, stream in opened.streams.items() if self._is_limited(stream.job)]
        for position, stream in late:
            self.model.cancel(opened.instance, batch_id, position)
            self._close(batch_id, position)
            text = (
                f"model '{self.name}' sent {stream.count} responses and no final one within its execution_timeout_ms "
                f"({self.model.timeout * 1000:g})"
            )
            self._send(stream.job, self._response(stream.job, Reply(error=Internal(text)), True, None))
        self._check_idle()

    def _is_limited(self, job: Job) -> bool:
        """Return whether `execution_timeout_ms` limits a stream whose batch is done."""
        return True

    def _answer(self, jobs: list[Job], reply: BatchReply) -> None:
        super()._answer(jobs, reply)
        self._release_ended(reply.batch_id)
        opened = self._open.get(reply.batch_id)
        if opened is None or not self.model.timeout:
            return
        if any(self._is_limited(stream.job) for stream in opened.streams.values()):
            overrun = partial(self._on_overrun, reply.batch_id)
            opened.deadline = PausableDeadline(
                self._loop, reply.left, overrun, paused=opened.is_paused(), time=reply.time
            )

    def _release_request(self, job: Job) -> None:
        """Release the memory of a request that has its last response, once its batch does not run any more."""
        self._release(job.batch_id, job.request.lease)
        job.request.lease = None

    def _release(self, batch_id: int, lease: Lease | None) -> None:
        """Release the memory of inputs, once the batch does not run any more."""
        if lease is None:
            return
        if batch_id in self._batches:
            self._ended.setdefault(batch_id, []).append(lease)
        else:
            lease.release()

    def _release_ended(self, batch_id: int) -> None:
        for lease in self._ended.pop(batch_id, ()):
            lease.release()

    def _deliver(self, job: Job, reply: Reply, lease: Lease | None) -> None:
        """Fail the stream if the batch's reply has an error for it; otherwise the reply adds no response."""
        if lease is not None:
            lease.release()
        if reply.error is None or (job.batch_id and not self._close(job.batch_id, job.position)):
            return
        self._send(job, self._response(job, reply, True, None))

    def _close(self, batch_id: int, position: int) -> bool:
        """Close the stream of a request, and resume it in the worker. Return whether it was open."""
        opened = self._open.get(batch_id)
        if opened is None or position not in opened.streams:
            return False
        stream = opened.streams.pop(position)
        self._release(batch_id, stream.inputs)
        if not opened.streams:
            del self._open[batch_id]
            opened.cancel_deadline()
        if stream.job.request.paused:
            self.model.set_paused(opened.instance, batch_id, position, False)
            opened.update_deadline()
        return True

    def _response(self, job: Job, reply: Reply, final: bool, lease: Lease | None, null: bool = False) -> InferResponse:
        return InferResponse(
            self.name, self.version, job.request.id, reply.outputs, reply.parameters, reply.error, final, lease, null
        )
