"""What breaks is put right by the mechanism that is there for it, in time, and the journal says why."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.system import models
from tests.system.machine import wait_until
from tests.system.service import Service

#: what systemd and a start may take beyond the watchdog's time, seconds
GRACE = 5.0


def watchdog_seconds(service: Service) -> float:
    """The unit's, as systemd has it."""
    shown = service.show("WatchdogUSec")
    assert shown.endswith("s"), shown
    return float(shown.removesuffix("s"))


@contextmanager
def always(service: Service, model: str) -> Iterator[None]:
    """The model answers every request within; what came otherwise is the failure."""
    failed: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            status = service.infer(model)
            if status != 200:
                failed.append(status)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == [], service.journal()[-4000:]


@pytest.mark.parametrize(
    ("signal", "unit"),
    [
        pytest.param("STOP", "", id="stopped process"),  # with the watchdog's time as it is shipped
        pytest.param("USR1", "[Service]\nEnvironment=EDGE_SERVE_FAULTS=1\nWatchdogSec=6s\n", id="blocked loop"),
    ],
)
def test_a_front_end_that_stands_still_is_restarted(fresh: Service, signal: str, unit: str) -> None:
    fresh.add_shipped_models("simple")
    fresh.override(unit)
    fresh.start()
    assert fresh.infer() == 200
    before = fresh.main_pid()
    time_allowed = watchdog_seconds(fresh) + GRACE

    fresh.machine.run(f"kill -{signal} {before}")
    assert wait_until(lambda: fresh.infer(timeout=0.5) != 200, 5), "it does not stand still"
    seconds = fresh.recovered_in("simple", time_allowed)

    print(f"SIG{signal}: answered again after {seconds:.1f} s, {time_allowed:g} s are allowed")
    assert fresh.main_pid() not in (0, before)
    assert fresh.show("NRestarts") == "1"
    assert "Watchdog timeout" in fresh.journal()


def test_a_hung_model_costs_its_worker_alone(fresh: Service) -> None:
    fresh.add_shipped_models("simple")
    fresh.add_python_model("hangs", models.source("hangs"))
    fresh.configure(hang_timeout_secs="3")
    fresh.start()
    before = fresh.main_pid()
    time_allowed = watchdog_seconds(fresh) + GRACE

    with always(fresh, "simple"):
        fresh.machine.run(f"touch {models.trigger('hangs')}")
        assert fresh.infer("hangs", 30) not in (0, 200), "the request that hangs is refused, not left"
        fresh.machine.run(f"rm {models.trigger('hangs')}")
        seconds = fresh.recovered_in("hangs", time_allowed)

    print(f"hung model: it infers again {seconds:.1f} s after the request was refused")
    assert fresh.main_pid() == before
    assert "hangs" in fresh.journal()


def test_a_segfaulting_model_costs_its_worker_alone(fresh: Service) -> None:
    fresh.add_shipped_models("simple")
    fresh.add_python_model("segfaults", models.source("segfaults"))
    fresh.start()
    before = fresh.main_pid()

    with always(fresh, "simple"):
        fresh.machine.run(f"touch {models.trigger('segfaults')}")
        assert fresh.infer("segfaults", 30) not in (0, 200)
        fresh.machine.run(f"rm {models.trigger('segfaults')}")
        seconds = fresh.recovered_in("segfaults", watchdog_seconds(fresh) + GRACE)

    print(f"segfaulting model: it infers again after {seconds:.1f} s")
    assert fresh.main_pid() == before
    assert "SIGSEGV" in fresh.journal()


def test_a_killed_worker_is_replaced(service: Service) -> None:
    before, workers = service.main_pid(), service.workers()
    assert workers

    service.machine.run(f"kill -KILL {' '.join(map(str, workers))}")
    assert wait_until(lambda: not set(workers) & set(service.workers()), 5)
    seconds = service.recovered_in("simple", watchdog_seconds(service) + GRACE)

    print(f"killed worker: its model infers again after {seconds:.1f} s")
    assert service.main_pid() == before
    assert "SIGKILL" in service.journal()


def test_memory_that_runs_out_costs_the_worker_that_took_it(fresh: Service) -> None:
    fresh.add_shipped_models("simple")
    fresh.add_python_model("hungry", models.source("hungry"))
    fresh.override("[Service]\nMemoryMax=400M\nMemorySwapMax=0\n")
    fresh.start()
    before = fresh.main_pid()

    with fresh.machine.boot.memory_limit(900 << 20), always(fresh, "simple"):
        fresh.machine.run(f"touch {models.trigger('hungry')}")
        assert fresh.infer("hungry", 60) not in (0, 200)
        fresh.machine.run(f"rm {models.trigger('hungry')}")
        seconds = fresh.recovered_in("hungry", watchdog_seconds(fresh) + GRACE)

    print(f"memory: the model that took it infers again after {seconds:.1f} s")
    assert fresh.main_pid() == before, "the front end outlives its workers"
    assert fresh.show("NRestarts") == "0"
    assert "hungry" in fresh.journal()


def test_a_model_that_reaches_its_own_limit_leaves_the_others_their_memory(fresh: Service) -> None:
    if not fresh.machine.boot.cgroup2:
        pytest.skip("limits of models need control groups of version 2")
    limit = 'parameters { key: "EDGE_SERVE_MEMORY_MAX" value { string_value: "200M" } }'
    fresh.add_shipped_models("simple")
    fresh.add_python_model("hungry", models.source("hungry"), limit)
    fresh.start()
    before = fresh.main_pid()

    with always(fresh, "simple"):
        fresh.machine.run(f"touch {models.trigger('hungry')}")
        assert fresh.infer("hungry", 60) not in (0, 200)
        fresh.machine.run(f"rm {models.trigger('hungry')}")
        fresh.recovered_in("hungry", watchdog_seconds(fresh) + GRACE)

    assert fresh.main_pid() == before
    assert "reached its limit of 209715200 bytes" in fresh.journal()


def test_a_crash_loop_ends_in_a_mode_that_says_what_is_wrong(fresh: Service) -> None:
    """The front end is killed each time that a model has been loaded."""
    fresh.add_shipped_models("simple")
    fresh.start()
    for _ in range(6):
        if fresh.status_of("GET", "/v2/health/ready") != 200:
            break
        pid = fresh.main_pid()
        fresh.machine.run(f"kill -SEGV {pid}")
        assert wait_until(lambda pid=pid: fresh.main_pid() not in (0, pid), 20 * fresh.patience)  # type: ignore[misc]
        assert wait_until(lambda: fresh.status_of("GET", "/v2/health/live") == 200, 20 * fresh.patience)
        time.sleep(1)

    assert fresh.status_of("GET", "/v2/health/live") == 200
    assert fresh.status_of("GET", "/v2/health/ready") == 400
    assert "edge" in fresh.metrics()
    assert "safe mode" in fresh.show("StatusText").lower()
