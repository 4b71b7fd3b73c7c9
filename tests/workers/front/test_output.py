"""Output of models: lines, limits, and crash reports."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_serve.messages.log_fields import RECURS
from edge_serve.workers.front import output
from edge_serve.workers.front.output import LONGEST_LINE, ModelLog, Rate, WorkerOutput
from edge_serve.workers.front.placement import ModelPlacement
from tests.workers.harness import run


def lines_of(*writes: bytes) -> list[str]:
    """Return the log lines that these writes become."""

    async def collect() -> list[str]:
        reading, writing = os.pipe()
        found: list[str] = []
        output = WorkerOutput(asyncio.get_running_loop(), reading, "m", found.append)
        for data in writes:
            os.write(writing, data)
            output.read()
        os.close(writing)
        output.finish()
        return found

    return run(collect())


def test_lines_are_put_together() -> None:
    assert lines_of(b"one\ntw", b"o\n\n", b"three") == ["one", "two", "", "three"]


def test_bytes_that_are_no_text_are_shown() -> None:
    assert lines_of(b"\xff\xfe\n") == ["��"]


@pytest.mark.parametrize(
    "writes",
    [(b"x" * 60_000, b"y" * 60_000), (b"x" * 5_000 + b"\n",), (b"x" * 5_000, b"y" * 10, b"y\n"), (b"x" * 5_000, b"\n")],
    ids=["endless", "at once", "in pieces", "before its end"],
)
def test_a_long_line_is_cut_and_says_so(writes: tuple[bytes, ...]) -> None:
    cut = "x" * LONGEST_LINE + f" ... (cut after {LONGEST_LINE} bytes)"
    after = [b"next\n"] if writes[-1].endswith(b"\n") else []
    assert lines_of(*writes, *after) == [cut, *(["next"] if after else [])]


def test_a_flood_is_counted_not_written() -> None:
    found = lines_of(*[b"line\n" * 1000] * 5)
    assert 1000 <= len(found) < 1100
    assert found[-1].startswith("(")
    assert "lines dropped" in found[-1]


def test_the_rate_refills() -> None:
    rate = Rate(8, 2)
    assert [rate.take(at) for at in (100, 100, 100, 100.0625, 100.125, 100.125, 200, 200, 200)] == [
        True, True, False, False, True, False, True, True, False,
    ]  # fmt: skip


def model_log_of(level: int, caplog: pytest.LogCaptureFixture) -> ModelLog:
    """Return the log of a worker whose clock stands still, in a server that shows lines from `level` on."""
    caplog.set_level(level, "edge_serve.model")
    return ModelLog(cast(asyncio.AbstractEventLoop, SimpleNamespace(time=lambda: 0.0)), "m", None)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_many_lines_do_not_push_out_errors(caplog: pytest.LogCaptureFixture, level: int) -> None:
    model_log = model_log_of(logging.DEBUG, caplog)
    for _ in range(3000):
        model_log.write({"level": level, "text": "step"}, ())
    model_log.write({"level": logging.ERROR, "text": "the reason"}, ())
    assert [one.getMessage() for one in caplog.records[1000:]] == [
        "m: 2000 log lines dropped: the model logs too much", "m: the reason",
    ]  # fmt: skip


def test_lines_of_a_level_that_is_not_shown_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    model_log = model_log_of(logging.INFO, caplog)
    for _ in range(3000):
        model_log.write({"level": logging.DEBUG, "text": "step"}, ())
    model_log.write({"level": logging.INFO, "text": "ready"}, ())
    assert [one.getMessage() for one in caplog.records] == ["m: ready"]


def test_a_warning_that_is_sent_once_is_never_dropped(caplog: pytest.LogCaptureFixture) -> None:
    model_log = model_log_of(logging.INFO, caplog)
    for _ in range(3000):
        model_log.write({"level": logging.ERROR, "text": "failed"}, ())
    link = SimpleNamespace(warned=set())
    placement = SimpleNamespace(number=7, link=link, spec=SimpleNamespace(name="m", version=1))
    for _ in range(2):  # of two instances
        model_log.write({"model": 7, "once": "Y", "text": "output 'Y' differs"}, [cast(ModelPlacement, placement)])
    assert [one.getMessage() for one in caplog.records[1000:]] == ["output 'Y' differs"]


def printed(data: bytes, **settings: Any) -> WorkerOutput:
    """Return the output of a process that has printed this and ended."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    made = WorkerOutput(asyncio.get_running_loop(), reading, "m", **settings)
    made.finish()
    return made


FATAL = b"""Fatal Python error: Segmentation fault

Current thread 0x00007f1c (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/env/lib/python3.11/site-packages/torch/nn/module.py", line 7 in call
  File "/models/net/1/model.py", line 12 in execute
  File "%s/backends/python_instance.py", line 113 in _execute_ordinary

Extension modules: numpy (total: 1)
"""


def test_the_place_of_a_crash_is_the_first_line_outside_of_libraries() -> None:
    async def places() -> list[str]:
        found = []
        own = str(Path(output.__file__).parents[2]).encode()
        crash = FATAL % own
        without_model = b"\n".join(line for line in crash.splitlines() if b"/models/" not in line) + b"\n"
        for report in (b"", crash.partition(b"\n")[2], without_model, crash):
            found.append(printed(b"a line of the model\n" + report).crash_place())
        return found

    assert run(places()) == ["", "", "", "in execute, /models/net/1/model.py line 12"]


def test_the_first_output_of_a_restarted_worker_is_marked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def collect(*, recurs: bool) -> None:
        printed(b"line\n", about={"model": "m"}, recurs=recurs)

    with caplog.at_level(logging.INFO, "edge_serve"):
        run(collect(recurs=False))
        run(collect(recurs=True))
        monkeypatch.setattr(output, "RECURS_SECONDS", -1)
        run(collect(recurs=True))

    assert [hasattr(record, RECURS) for record in caplog.records] == [False, True, False]
    assert {record.__dict__["model"] for record in caplog.records} == {"m"}
