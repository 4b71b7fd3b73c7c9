"""Short waits are spent awake: to wake a thread that sleeps costs more than a small model computes (ADR 17).

Worker's side too: the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_serve.workers.front.free_cores import FreeCores


class PollingWait:
    """Whether the next wait is worth polling through: when the one before it was short. Nothing is polled for on a
    server that is asked now and then, and at most one wait too many where requests stop."""

    __slots__ = ("_short",)

    def __init__(self) -> None:
        self._short = False

    def poll_ns(self, most_ns: int) -> int:
        """For how long to poll before going to sleep; 0 = sleep at once."""
        return most_ns if self._short else 0

    def took(self, waited_ns: int, most_ns: int) -> None:
        """The wait is over. One that was longer only by what waking takes counts as short too."""
        self._short = 2 * waited_ns <= 3 * most_ns


@dataclass(slots=True)
class PollPolicy:
    """Who may poll, so that those who wait never take a core from those who work. The front end's, one for a server.

    Attributes:
        poll_us: the longest that front end and worker poll; 0 = never.
        cores: that this server has to itself, as far as it knows.
        out: batches that workers have now, each of which keeps a core busy.
        recent: the instances that were asked last, at most one for each core but the front end's; the last one first.
        neighbours: who else computes on those cores; None = nobody asks.
    """

    poll_us: int = 0
    cores: int = 1
    out: int = 0
    recent: list[int] = field(default_factory=list)
    neighbours: FreeCores | None = None

    def front_end_ns(self) -> int:
        """While a batch is out, its reply is what comes next; without one, it may be anything, at any time."""
        return self.poll_us * 1000 if 0 < self.out < self.cores else 0

    def worker_us(self, instance: int, requests: int) -> int:
        """For how long an instance may poll after a batch of so many that it gets now.

        A batch of several says that clients are waiting already: then there is no core to spare and no time to win. One
        that was not among the last to be asked would poll while another works: so would the steps of an ensemble.
        """
        if self.neighbours is not None:
            self.cores = self.neighbours.cores_left()
        recent = self.recent
        expected = instance in recent
        if not expected or recent[0] != instance:
            self.recent = [instance, *(one for one in recent if one != instance)][: self.cores - 1]
        return self.poll_us if expected and requests == 1 and self.out + 1 < self.cores else 0
