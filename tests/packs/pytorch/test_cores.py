"""How many threads a run gets."""

from __future__ import annotations

import random
import threading

import pytest

from packs.pytorch.cores import Cores

_SECOND = 1_000_000_000


def test_a_run_alone_has_all_cores() -> None:
    cores = Cores(4)
    for now in range(3):
        assert cores.acquire(now) == 4
        cores.release()


def test_runs_beside_each_other_share_and_go_on_sharing_for_a_moment() -> None:
    cores = Cores(4)
    assert [cores.acquire(0), cores.acquire(1)] == [4, 2]
    cores.release()
    assert cores.acquire(2) == 2
    cores.release()
    cores.release()
    assert cores.acquire(3) == 2  # the other one is between two batches
    cores.release()
    assert cores.acquire(_SECOND) == 4
    cores.release()


def test_more_runs_than_cores_have_one_thread_each() -> None:
    cores = Cores(2)
    assert [cores.acquire(0) for _ in range(5)] == [2, 1, 1, 1, 1]


def test_a_seeded_walk_never_divides_more_cores_than_there_are_among_lasting_runs() -> None:
    walk, cores, running = random.Random(19), Cores(8), 0
    for step in range(2000):
        if running and walk.random() < 0.5:
            cores.release()
            running -= 1
        else:
            running += 1
            threads = cores.acquire(step * 1_000_000)
            assert 1 <= threads <= max(1, 8 // running)


def test_several_instances_share_the_thread_of_runs_alone() -> None:
    """OpenMP keeps helpers for each thread that ran with several threads."""
    cores = Cores(2)
    cores.add()
    assert cores.run(lambda threads: (threads, threading.get_ident()), 0) == (2, threading.get_ident())
    cores.add()
    first = cores.run(lambda threads: (threads, threading.get_ident()), 0)
    assert first == cores.run(lambda threads: (threads, threading.get_ident()), 1)
    assert first[0] == 2
    assert first[1] != threading.get_ident()
    cores.acquire(2)
    assert cores.run(lambda threads: (threads, threading.get_ident()), 3) == (1, threading.get_ident())
    cores.remove()
    assert cores.run(lambda _: threading.get_ident(), _SECOND) == threading.get_ident()


def test_a_run_that_fails_in_the_shared_thread_raises_and_has_ended() -> None:
    cores = Cores(2)
    cores.add()
    cores.add()

    def fail(_: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cores.run(fail, 0)
    assert cores.acquire(1) == 2
