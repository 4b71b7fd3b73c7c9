"""State that the channels of one opened model share, and the interface of their listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Protocol

from edge_serve.backends.base import Reply
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, Lease
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.records import slotted
from edge_serve.workers.front.busy_poll import PollPolicy
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.wire.layout import TensorLayout


class ModelListener(Protocol):
    """Callbacks for the outcome of a model's batches, of which each gets exactly one of `on_reply` and `on_lost`.

    The defaults discard the parts of a decoupled model's answers, and know nothing of the requests in a batch.

    Attributes:
        name: the model's name, without namespace; "" = it is not known here.
    """

    name: str = ""

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """Take the reply to a batch. The instance is idle now, unless `reply.last`. The listener releases `reply.lease`
        and the leases of the requests."""

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """Fail the batches of instances, each with its error: their worker was reaped, and touches no memory any more.

        All instances that the worker had of the model are in `lost`, so that none of them gets a batch meanwhile.
        """

    def on_back(self, instance: int) -> None:
        """Note that an instance is back and idle: its worker was restarted, and has opened the model again."""

    def on_placed(self, instance: int, batch_id: int, index: int, lease: Lease) -> bool:
        """Take the lease of a request's inputs, to release it at the later of `on_reply` and the last reply: threads of
        the model may read them after `on_reply`, and `execute` after the last reply. Return False to leave it to the
        channel, which releases it after `on_reply`."""
        return False

    def on_partial(
        self, instance: int, batch_id: int, index: int, reply: Reply | None, final: bool, lease: Lease | None
    ) -> None:
        """Take one of several replies of a decoupled model, before or after `on_reply` of its batch. None only says
        that no further reply comes. The listener releases `lease`."""
        if lease is not None:
            lease.release()

    @property
    def driver(self) -> ModelListener:
        """The listener that knows the requests: this one, or another one that it stands before."""
        return self

    def run_one_by_one(self) -> None:
        """Send each request alone from now on: the model calls others."""
        return

    def running(self, batch_id: int, position: int) -> InferRequest | None:
        """Return the request at a position of a running batch."""
        return None


@slotted
class Link:
    """State that all channels of one opened model share.

    Attributes:
        name: model's name, for texts.
        row_bytes: output bytes to expect for each row: exact from the configuration, or learned; 0 = unknown.
        large: outputs of one request may exceed INLINE_BYTES, so slots are handed out with the batch (a decoupled
            model's replies ask for theirs one by one).
        timeout: the model's `execution_timeout_ms`, in seconds; 0 = none.
        hang: seconds after which a batch that does not move counts as hung; 0 = as for every model.
        poll_policy: counts the batches in flight.
        tests: its golden test is running, which is a part of loading.
        warned: warnings that the log has already (`Remote.warn_once`).
    """

    name: str
    layout: TensorLayout
    arena: Arena
    listener: ModelListener
    timeout: float = 0.0
    hang: float = 0.0
    poll_policy: PollPolicy = field(default_factory=PollPolicy)
    tests: bool = False
    warned: set[str] = field(default_factory=set)
    row_bytes: int = field(init=False)
    large: bool = field(init=False)

    def __post_init__(self) -> None:
        self.row_bytes = self.layout.row_bytes
        self.large = self.row_bytes * self.layout.most_rows > INLINE_BYTES and not self.layout.decoupled

    def learn(self, nbytes: int, rows: int) -> None:
        """Adapt `row_bytes` to a batch with large outputs: at once where they grow, slowly where they shrink.

        Args:
            rows: of the batch; 0 = they were not counted, because its outputs were not expected to be large.
        """
        if not self.layout.row_bytes and not self.layout.decoupled:
            self.large = True
            if rows:
                self.row_bytes = max(-(-nbytes // rows), self.row_bytes * 7 // 8)
