"""Tables of the documentation, made from results/*.json: `make docs` writes them between the comments of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import compress

from benchmarks.report import Row, last

_REGION = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
_RUN = "`.venv/bin/python -m benchmarks.run {}`"


def fill(text: str) -> str:
    """Return a page with its tables filled from the recorded results.

    Raises:
        KeyError: the page asks for a table that does not exist.
    """
    return _REGION.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


def size_and_start() -> str:
    """Return a table of installed size, time to ready, and memory."""
    size, start, memory = ({row[key]: row for row in _rows(name)} for name, key in _SIZES)
    empty, demo = memory["empty"], next(row for row in memory.values() if str(row["repository"]).startswith("demo"))
    rows = [
        ("`pip install .` in an empty environment", f"{size['.']['MB']:.0f} MB", _RUN.format("installed_size")),
        ("`pip install '.[onnx]'`", f"{size['.[onnx]']['MB']:.0f} MB", "the same"),
        ("start to ready: no model", _seconds(start["empty"]), _RUN.format("start_time")),
        ("`simple` alone", _seconds(start["simple"]), "the same"),
        ("the four quickstart models and magika", _seconds(start["quickstart and magika"]), "the same"),
        ("memory of the front end, no model (RSS)", f"{empty['front end RSS']:.0f} MB", _RUN.format("memory")),
        (f"all workers of the {demo['repository']} (PSS)", f"{demo['workers PSS']:.0f} MB", "the same"),
    ]
    return _table(("", "", "command"), rows)


_SIZES = (("installed_size", "install"), ("start_time", "repository"), ("memory", "repository"))


def in_short() -> str:
    """Return a list in place of tables: size and start, and throughput beside Triton."""
    size, start, memory = ({row[key]: row for row in _rows(name)} for name, key in _SIZES)
    peer, busy = _rows("onnx_peer"), _rows("busy_machine")
    ratios = {
        "Python models over HTTP": [row for row in _rows("end_to_end") if row.get("triton /s")],
        "ONNX models of 2 ms and more": [row for row in peer if row["model"] not in _SMALL],
        "an ONNX model of 7 us": [row for row in peer if row["model"] == "simple"],
        "a Python model beside programs that use both cores": [row for row in busy if row["programs"] == 2],
    }
    return (
        f"- `pip install '.[onnx]'` takes {size['.[onnx]']['MB']:.0f} MB, the start without a model "
        f"{_seconds(start['empty'])}, and the front end {memory['empty']['front end RSS']:.0f} MB of memory.\n"
        "- Requests per second, as a multiple of Triton's:\n  "
        + ",\n  ".join(f"{_span(rows)} for {name}" for name, rows in ratios.items())
        + ".\n"
    )


def beside_triton() -> str:
    """Return throughput and the 99th percentile of the latency, here and in Triton."""
    return _table(_HEAD, _beside_triton())


def _beside_triton() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, label in _COMPARED:
        for row in _rows(name):
            if row.get("programs") != 0 and row.get("triton /s"):  # without busy programs: end_to_end
                rows.append((label.format_map(row), *_compared(row), f"`{name}`"))
    long = [row for row in _rows("onnx_peer") if row["model"] not in _SMALL]
    short = [row for row in _rows("onnx_peer") if row["model"] == "simple"]
    rows += [
        (f"ONNX, a model of 7 us, {row['connections']} at a time", *_compared(row), "`onnx_peer`") for row in short
    ]
    rows.append((_LONG, _span(long), "", "", "", "", "`onnx_peer`"))
    return rows


def _span(rows: Sequence[Row]) -> str:
    ratios = [row["ratio"] for row in rows]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


_FIGURES = ("median (rounds)", "p99", "p99 of Triton", "CPU per request", "CPU of Triton")
_HEAD = ("requests per second, as a ratio", *_FIGURES, "benchmark")
#: models of `onnx_peer` that take less than 2 ms
_SMALL = ("simple", "text_direction")
_LONG = "ONNX, models of 2 ms and more, 1 to 8 at a time"
#: benchmark, and the case that one of its rows measures
_COMPARED = (
    ("end_to_end", "Python model, HTTP, {connections} at a time"),
    ("grpc_infer", "Python model, gRPC, {connections} at a time"),
    ("ensemble", "ensemble of three Python models, {connections} at a time"),
    ("json_bodies", "Python model, JSON, {sent}, {connections} at a time"),
    ("busy_machine", "Python model beside busy programs on {programs} of 2 cores, {connections} at a time"),
    ("sequences", "sequences, `{model}`, {open sequences} open"),
    ("decoupled", "1,000 responses for each request, {connections} connections"),
)


def _compared(row: Row) -> tuple[str, ...]:
    servers = ("edge-serve", "triton")
    return _ratio(row), *(_p99(row, server) for server in servers), *(_cpu(row, server) for server in servers)


def processor_time() -> str:
    """Return processor time and the 99th percentile of the latency at the same rate, here and in Triton."""
    rows = [
        (f"{_DOORS[row['door']]}, {row['requests/s']:,} a second", f"{row['CPU ratio']:.2f}", *_compared(row)[1:])
        for row in _rows("processor_time")
    ]
    table = _table(("Python model", "CPU, as a ratio", *_FIGURES[1:]), rows)
    return table + "".join(f"\nLoad of the machine: {load}.\n" for load in _loads("processor_time"))


_DOORS = {"http": "HTTP", "grpc": "gRPC"}


def onnx_peer() -> str:
    """Return the figures of ONNX models beside Triton's C++ backend."""
    rows = [(f"`{row['model']}`", str(row["connections"]), *_compared(row)) for row in _rows("onnx_peer")]
    return _table(("model", "connections", *_FIGURES), rows)


def sizing() -> str:
    """Return requests per second of single models."""
    named = [(f"`{row['model']}`", row) for row in _rows("onnx_peer")]
    named += [("Python, two rows of 16 integers", row) for row in _rows("end_to_end")]
    rows = [
        (name, str(row["connections"]), f"{row['edge-serve /s']:,.0f}", _p99(row, "edge-serve")) for name, row in named
    ]
    return _table(("model", "connections", "requests per second", "p99"), rows)


#: the tables that pages may contain
TABLES: dict[str, Callable[[], str]] = {
    "size_and_start": size_and_start,
    "in_short": in_short,
    "beside_triton": beside_triton,
    "processor_time": processor_time,
    "onnx_peer": onnx_peer,
    "sizing": sizing,
}


def _rows(name: str) -> list[Row]:
    found = last(name)
    return found[0].rows if found else []


def _loads(name: str) -> list[str]:
    """Return the load of the machine while a benchmark ran, from the notes of `run.measure`."""
    found = last(name)
    return [note.partition("; load ")[2] for note in (found[0].notes if found else []) if "; load " in note]


def _seconds(row: Row) -> str:
    return f"{row['median s']:.2f} s"


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"


def _p99(row: Row, server: str) -> str:
    return _ms(row[f"{server} p99 us"])


def _cpu(row: Row, server: str) -> str:
    """Return the processor time; empty where the recorded result has none."""
    microseconds = row.get(f"{server} CPU us")
    return "" if microseconds is None else _ms(microseconds)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.{2 if microseconds < 1e4 else 0}f} ms"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    measured = [any(row[column] for row in rows) or not head[column] for column in range(len(head))]
    head, *rows = ([*compress(line, measured)] for line in (head, *rows))  # leave out columns without figures
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
