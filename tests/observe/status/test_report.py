"""The report for a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.status import SystemEntry, SystemFacts, SystemFault, WorkerFacts
from edge_serve.observe.metrics.gpu import GpuReading
from edge_serve.observe.metrics.machine import MachineReading
from edge_serve.observe.metrics.updates import BundleStatus, Updates
from edge_serve.observe.status import report as texts
from edge_serve.observe.status.document import build
from edge_serve.observe.status.events import StatusEvent
from edge_serve.observe.status.probe import Readings
from edge_serve.observe.status.report import coloured, report, table
from tests.observe.status.documents import document, facts, served, server


def test_a_report_shows_the_server_its_models_and_workers() -> None:
    lines = report(None, document())

    assert lines[0] == "edge-serve 1.2.3 on cart-7: ready, up 1 h 2 min, process 1"
    assert "requests  10 in all, 1 failed, 4 in flight, 3 queued" in lines
    assert "cpu       25 % of 4 cores, load 1.50" in lines
    assert "memory    2.0 GiB of 8.0 GiB in use, workers 70 MiB" in lines
    assert "heat      cpu 48 C" in lines
    assert "gpu       50 %, memory 1.0 GiB of 4.0 GiB, 51 C, 12.5 W" in lines
    assert "MODEL  VERSION  STATE  REQ/S  MEDIAN  99 %  QUEUE  BUSY  FAILED  4XX  MEMORY" in lines
    assert "det          1  ready      0       -     -      3     -       1    0  70 MiB" in lines
    assert "WORKER       PROCESS  MEMORY      GPU         UP  RESTARTS  MODELS" in lines
    assert "front end          1  40 MiB        -  1 h 2 min         0" in lines
    assert "onnxruntime       20  70 MiB  300 MiB      1 min         2  det:1" in lines
    assert lines[-1].endswith("error    it fell over (x 3)")


def test_models_share_the_memory_of_their_worker_and_add_up_to_the_total() -> None:
    names = ["a", "b", "c"]
    made = document(
        index=[IndexEntry(name, "1", "READY") for name in [*names, "chain"]],
        models=[*(served(name) for name in names), served("chain", pids=(), instances=0)],
        workers=[WorkerFacts("onnxruntime", 20, 0, tuple((name, "1") for name in names))],
    )
    made["workers"][0]["pss_bytes"] = 90 << 20
    lines = report(None, made)

    assert "memory    2.0 GiB of 8.0 GiB in use, workers 90 MiB" in lines
    assert [line.split()[-2:] for line in lines if line.startswith(("a  ", "b  ", "c  "))] == [["30", "MiB"]] * 3
    assert next(line for line in lines if line.startswith("chain ")).split()[-1] == "-"


def test_gpu_shows_its_limit_its_lowered_clocks_and_the_memory_of_models() -> None:
    made = document(models=[served(gpu_memory_bytes=700 << 20)])
    made["device"]["gpus"][0] |= {"power_limit": 25.0, "throttling": ["sw_thermal", "hw_slowdown"]}
    lines = report(None, made)

    assert (
        "gpu       50 %, memory 1.0 GiB of 4.0 GiB, 51 C, 12.5 of 25 W, clocks lowered (sw_thermal, hw_slowdown)"
        in lines
    )
    assert "MODEL  VERSION  STATE  REQ/S  MEDIAN  99 %  QUEUE  BUSY  FAILED  4XX  MEMORY      GPU" in lines
    assert "det          1  ready      0       -     -      3     -       1    0  70 MiB  700 MiB" in lines


def test_lost_gpu_is_reported_with_advice() -> None:
    made = document()
    made["device"]["gpus"][0]["problem"] = "the GPU is lost: restart the machine"

    assert "gpu       GPU-1: the GPU is lost: restart the machine" in report(None, made)


def test_two_documents_give_rates() -> None:
    first = facts()
    before, after = build(first), build(replace(first, clock_ns=first.clock_ns + 1_000_000_000))

    assert any(line.startswith("requests  0/s, median -, 99 % -; 10 in all") for line in report(before, after))


def test_why_it_is_not_ready_is_said() -> None:
    made = document(
        server=server(ready=False), models=[], index=[IndexEntry("det", "1", "UNAVAILABLE", "Internal: no file")]
    )
    lines = report(None, made)

    assert "not ready" in lines[0]
    assert lines[1] == "  1 model failed: det (Internal: no file); 0 serve"
    assert "det          1  failed  Internal: no file" in lines


@pytest.mark.parametrize("columns", [60, 80])
def test_a_reason_is_wrapped_in_a_narrow_terminal_and_no_word_of_it_is_lost(columns: int) -> None:
    reason = (
        "Invalid argument: unable to find 'model.onnx' in /var/lib/edge-serve/models/det/1: move it there, or write"
    )
    made = document(
        server=server(ready=False), models=[served("a")], errors=[StatusEvent(0, "error", "", reason)],
        index=[IndexEntry("a", "1", "READY"), IndexEntry("det", "1", "UNAVAILABLE", reason)],
    )  # fmt: skip
    lines = report(None, made, columns=columns)

    for first, after in (("edge-serve 1.2.3", 1), ("det          1  failed", 0), ("LAST PROBLEMS", 1)):
        number = next(number for number, line in enumerate(lines) if line.startswith(first)) + after
        end = lines.index("", number) if "" in lines[number:] else len(lines)
        assert max(map(len, lines[number:end])) <= columns
        assert reason in " ".join(" ".join(lines[number:end]).split())
    assert reason in "\n".join(report(None, made)), "into a file it is one line"


def test_no_models_and_no_sensors_are_no_trouble() -> None:
    made = document(index=[], models=[], workers=[], errors=[], readings=Readings(MachineReading()))
    lines = report(None, made)

    assert "no models: put one into the repository, or load one over the API" in lines
    assert "cpu       - of 0 cores" in lines
    assert not any(line.startswith(("heat", "gpu", "LAST")) for line in lines)


def test_unloaded_versions_are_one_line() -> None:
    gone = [IndexEntry(f"m{number:02}", "1", "UNAVAILABLE", "unloaded") for number in range(10)]
    lines = report(None, document(index=[IndexEntry("det", "1", "READY", ""), *gone]))

    table = next(number for number, line in enumerate(lines) if line.startswith("MODEL"))
    assert lines[table + 1].startswith("det ")
    assert lines[table + 2] == "unloaded  m00 1, m01 1, m02 1, m03 1, m04 1, m05 1, m06 1, m07 1, and 2 more"
    assert lines[table + 3] == ""
    only = report(None, document(models=[], index=gone[:1]))
    assert "unloaded  m00 1" in only
    assert not any(line.startswith(("MODEL", "no models")) for line in only)


def test_events_in_place_of_problems() -> None:
    lines = report(None, document(), events="events")

    assert lines[-2] == "LAST EVENTS"
    assert lines[-1].endswith("info     model det is ready")


def test_no_text_of_a_document_can_steer_the_terminal() -> None:
    evil = "\x1b]0;x\x07\n\r\x9b"

    def spoilt(value: Any) -> Any:
        """Return the document of another device that is hostile: each of its texts has control characters."""
        if isinstance(value, dict):
            return {key: spoilt(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [spoilt(one) for one in value]
        return value + evil if isinstance(value, str) else value

    entries = (SystemEntry("12", "trying"),)
    fault = SystemFault("settings-1", "line 3: x", "1970-01-01T00:00:00Z", "Correct it.")
    gpu = GpuReading("GPU-1", 0.5, 4 << 30, 1 << 30, 3 << 30, 12.5, throttling=("thermal",))
    made = document(
        readings=Readings(
            gpus=(gpu, GpuReading("GPU-2", problem="lost")),
            versions={"edge-serve": "1.2.3"},
            updates=Updates(1.0, state="idle", error="x", error_reason="y", paused="z", bundles=(BundleStatus("det"),)),
            system=SystemFacts(version="12", slot="b", entries=entries, faults=(fault,)),
        ),
        index=[IndexEntry("det", "1", "READY"), IndexEntry("seg", "1", "UNAVAILABLE", "no such file")],
    )

    for one in (spoilt(made), spoilt(document(server=server(ready=False)))):
        text = "".join(report(None, one, events="events"))
        assert not [letter for letter in text if ord(letter) < 32 or 127 <= ord(letter) < 160]


def test_colours_are_around_states_only_where_asked() -> None:
    text = "\n".join(report(None, document(), coloured))

    assert "on cart-7: \x1b[32mready\x1b[0m, up" in text
    assert "1  \x1b[32mready\x1b[0m  " in text
    assert "\x1b" not in "\n".join(report(None, document()))


def test_a_batch_that_runs_for_long_is_marked() -> None:
    short, long = served("a", oldest_batch_seconds=9.96), served("b", oldest_batch_seconds=95.2)
    made = document(models=[short, long], index=[IndexEntry("a", "1", "READY"), IndexEntry("b", "1", "READY")])
    text = "\n".join(report(None, made, coloured))

    assert "\x1b[32mready\x1b[0m" in text
    assert "     3  10.0 s       1" in text
    assert "\x1b[31mbusy\x1b[0m " in text
    assert "     3   \x1b[31m1 min\x1b[0m       1" in text
    assert "a batch has been running for 95 s; requests in flight: 4" in text


def test_a_server_of_an_older_version_is_reported_too() -> None:
    made = document()
    del made["totals"]
    for member in ("in_flight", "oldest_batch_seconds", "client_errors"):
        del made["models"][0][member]

    assert "requests  10 in all, 1 failed, 0 in flight, 3 queued" in report(None, made)


def test_a_row_may_end_early() -> None:
    assert table([("A", "B", "C"), ("long", "1"), ("x", "22", "3")], "<><") == [
        "A      B  C",
        "long   1",
        "x     22  3",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (texts.rate(0), "0"),
        (texts.rate(0.01), "0.1"),
        (texts.rate(9.96), "10.0"),
        (texts.rate(12345.6), "12,346"),
        (texts.duration(None), "-"),
        (texts.duration(0.000412), "0.41 ms"),
        (texts.duration(0.0412), "41.2 ms"),
        (texts.duration(0.412), "412 ms"),
        (texts.duration(4.12), "4.12 s"),
        (texts.age(None), "-"),
        (texts.age(0.04), "0.0 s"),
        (texts.age(12.3), "12 s"),
        (texts.size(None), "-"),
        (texts.size(3 << 19), "2 MiB"),
        (texts.size(3 << 29), "1.5 GiB"),
        (texts.percent(None), "-"),
        (texts.span(None), "-"),
        (texts.span(59.9), "59 s"),
        (texts.span(3599), "59 min"),
        (texts.span(90061), "1 d 1 h"),
    ],
)
def test_figures_are_short(text: str, expected: str) -> None:
    assert text == expected


def test_a_reason_of_several_lines_is_one_line() -> None:
    found = document()
    found["models"][0].update(condition="failed", reason="no module\n\nAt:\n  model.py(6)\nInstall it")

    assert any(line.endswith("no module At: model.py(6) Install it") for line in report(None, found))


def with_updates(**members: object) -> list[str]:
    bundles = (
        BundleStatus("det", ("det",), 16, 15, 17, "PROBATION", 5, 10),
        BundleStatus("ocr", release=3, reason="release 4 is bad here: golden test"),
    )
    made = replace(facts(), time_ms=1_000_000_000)
    updates = Updates(bundles=bundles, **{"state": "idle", "last_check": made.time_ms / 1000 - 120, **members})  # type: ignore[arg-type]  # of any member
    return report(None, build(replace(made, readings=replace(made.readings, updates=updates))))


def test_releases_and_the_last_check_are_shown() -> None:
    lines = with_updates()
    assert "updates   idle; last check 2 min ago" in lines
    assert "RELEASE OF  SERVES  STATE      NEXT  FETCHED" in lines
    assert "det             16  PROBATION    17     50 %" in lines
    assert "ocr              3  GOOD          -        -  release 4 is bad here: golden test" in lines
    assert not any("RELEASE" in line or "updates" in line for line in report(None, document()))


def with_system(system: SystemFacts, columns: int = 0) -> list[str]:
    made = facts()
    return report(None, build(replace(made, readings=replace(made.readings, system=system))), columns=columns)


def test_the_device_image_and_its_faults_are_shown() -> None:
    entries = (SystemEntry("11", "good"), SystemEntry("12", "trying"), SystemEntry("13", "bad"))
    fault = SystemFault("settings-1", "edge-serve.toml, line 3: x", "1970-01-01T00:00:00Z", "Correct\x1b it.")
    lines = with_system(SystemFacts(version="12", slot="b", entries=entries, faults=(fault,)))
    assert lines[1:3] == [
        "system    version 12, slot b; version 12 is trying; version 13 is bad; no settings yet",
        "fault     edge-serve.toml, line 3: x Correct\\x1b it.",
    ]
    assert "system    version 12, slot -" in with_system(SystemFacts(version="12", provisioned=True))
    assert "system    x cannot be read" in with_system(SystemFacts(problem="x cannot be read"))
    assert not any(line.startswith(("system", "fault")) for line in report(None, document()))
    narrow = with_system(SystemFacts(faults=(fault,)), 40)
    assert "fault     edge-serve.toml, line 3: x" in narrow


def test_why_updates_do_not_come_is_shown() -> None:
    lines = with_updates(error="the disk is full", error_reason="no_space", clock_unset=True, paused="by anna")
    text = "idle; last check 2 min ago; the clock is not set; paused: by anna; no_space: the disk is full"
    assert f"updates   {text}" in lines
    assert "updates   x cannot be read" in with_updates(problem="x cannot be read")
