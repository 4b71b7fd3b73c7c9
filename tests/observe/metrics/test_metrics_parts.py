"""Options, text, the reader of the machine, and the docs page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.observe.metrics.catalogue import CATALOGUE
from edge_serve.observe.metrics.exposition import number, quantile_of
from edge_serve.observe.metrics.machine import Machine
from edge_serve.observe.metrics.options import DEFAULT_QUANTILES, parse_options


def test_names_are_unique_and_our_counters_end_in_total() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    ours = [m for m in CATALOGUE if m.name.startswith("edge_serve_") and m.kind == "counter"]
    assert ours
    assert all(m.name.endswith("_total") for m in ours)


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (3.0, "3"), (0.1, "0.1"), (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e22, "1e+22")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_options() -> None:
    options = parse_options(["summary_latencies=true", "summary_quantiles=0.5:0.05,0.75:0.01"], interval_ms=10)
    assert (options.counters, options.summaries, options.histograms) == (True, True, False)
    assert options.quantiles == (0.5, 0.75)
    assert options.interval_ns == 10_000_000
    assert parse_options([]).quantiles == DEFAULT_QUANTILES
    assert parse_options(["counter_latencies=false", "counter_latencies=true"]).counters


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("counter_latencies", "option format is <setting>=<value>. Got counter_latencies"),
        ("=true", "option format"),
        ("counter_latencies=", "option format"),
        ("a,counter_latencies=true", "unknown setting"),
        ("counter_latencies=maybe", "'true' or 'false', found 'maybe'"),
        ("summary_quantiles=0.5", "expects <quantile>:<error>, found '0.5'"),
        ("summary_quantiles=0.5:x", "expects <quantile>:<error>"),
        ("summary_quantiles=1.5:0.1", "lie in 0..1"),
        ("summary_quantiles=nan:0.1", "lie in 0..1"),
    ],
)
def test_options_that_are_refused(setting: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text.replace(".", r"\.")):
        parse_options([setting])


def test_quantile_is_the_value_that_its_share_does_not_exceed() -> None:
    values = list(range(1, 101))
    assert [quantile_of(values, q) for q in (0, 0.01, 0.5, 0.99, 1)] == [1, 1, 50, 99, 100]
    assert math.isnan(quantile_of([], 0.5))


def write_proc(proc: Path, busy: int, idle: int) -> None:
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    400 kB\n")


def test_machine_averages_since_the_reading_before(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    write_proc(proc, 100, 100)
    machine = Machine(interval_ns=10, now_ns=0, proc=proc)
    write_proc(proc, 130, 110)
    reading = machine.read(0)
    assert (reading.cpu_utilization, reading.memory_total, reading.memory_used) == (0.75, 1024_000, 614_400)
    write_proc(proc, 130, 210)
    assert machine.read(9) is reading
    assert machine.read(10).cpu_utilization == 0


def test_machine_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
    reading = Machine(0, 0, proc=tmp_path / "missing").read(1)
    assert (reading.cpu_utilization, reading.memory_total, reading.memory_used) == (None, None, None)


def test_machine_reads_this_machine() -> None:
    reading = Machine(0, 0).read(1)
    assert reading.cpu_utilization is not None
    assert 0 <= reading.cpu_utilization <= 1
    assert reading.memory_total is not None
    assert reading.memory_used is not None
    assert 0 < reading.memory_used < reading.memory_total
