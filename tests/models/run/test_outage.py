"""When requests stop waiting for lost workers, with a loop whose timers ring when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from edge_serve.models.run.outage import OUTAGE_SECONDS, WorkerOutage


class Timer:
    """One that was set."""

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self.seconds, self.ring = seconds, ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scene:
    """The absence of a model's workers; `told` is how often it was said to be long."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.told = 0
        self.absence = WorkerOutage("m", self, self._tell)  # type: ignore[arg-type]  # what it uses of a loop

    def call_later(self, seconds: float, ring: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, ring))
        return self.timers[-1]

    def _tell(self) -> None:
        self.told += 1


def test_an_outage_begins_when_all_instances_are_lost() -> None:
    here = Scene()
    here.absence.update(False)
    assert here.timers == []
    here.absence.update(True)
    here.absence.update(True)

    (timer,) = here.timers
    assert timer.seconds == OUTAGE_SECONDS
    assert not here.absence.is_long
    timer.ring()
    assert here.absence.is_long
    assert here.told == 1
    assert "model 'm' has had no worker for 5 s" in here.absence.error().message


def test_one_instance_that_is_back_ends_it() -> None:
    here = Scene()
    here.absence.update(True)
    here.timers[0].ring()
    here.absence.update(False)
    assert not here.absence.is_long
    here.absence.update(True)
    here.absence.update(False)

    assert len(here.timers) == 2
    assert here.timers[1].cancelled, "one that has ended must not ring"


def test_an_outage_after_the_stop_is_not_reported() -> None:
    here = Scene()
    here.absence.stop()
    here.absence.update(True)
    here.absence.stop()
    here.absence.update(True)

    (timer,) = here.timers
    assert timer.cancelled
