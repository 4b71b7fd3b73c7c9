"""The status document as text for a terminal. Pure: a document in, lines out."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edge_serve.messages.line import one_line
from edge_serve.messages.status import BUSY_SECONDS
from edge_serve.observe.status.rates import Key, Rates, between, key_of, totals_of

Document = Mapping[str, Any]
#: (text, style) -> the text in that style
Paint = Callable[[str, str], str]

NONE = "-"
#: of the further lines of a text that is wrapped
_INDENT = "    "
#: unloaded versions that are named
_MOST_UNLOADED = 8
_STYLES = {"good": "32", "busy": "33", "bad": "31", "title": "1", "head": "2"}
_AMBER = ("starting", "stopping", "loading", "restarting", "unready")
_OF_STATE = {"ready": "good", **dict.fromkeys(_AMBER, "busy")}
#: a change of colour on an ANSI terminal
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_LEVEL = {"error": "bad", "warning": "busy"}


def plain(text: str, style: str) -> str:
    """Return the text without colours."""
    return text


def coloured(text: str, style: str) -> str:
    """Return the text in the ANSI colour of a style."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style in _STYLES else text


def report(
    before: Document | None,
    after: Document,
    paint: Paint = plain,
    *,
    events: str = "errors",
    most_events: int = 5,
    columns: int = 0,
) -> list[str]:
    """Return the lines of a report.

    Args:
        before: an earlier document, for rates and latencies; None = without.
        events: `errors` or `events`, of which the newest are shown.
        columns: of the terminal: reasons and events that are longer are wrapped; 0 = no text is.
    """
    before, after = _cleaned(before), _cleaned(after)
    total, each = between(before, after)
    lines = [
        *_head(after, paint, columns),
        *_system(after.get("system"), paint, columns),
        "",
        *_figures(after, total, measured=before is not None),
        "",
    ]
    lines += _models(after, each, paint, columns)
    lines += [*_releases(after.get("updates"), after["time_ms"] / 1000, paint, columns), "", *_workers(after, paint)]
    if after.get("log_hidden"):
        text = (
            "the log is shown to clients with a token, and on the device itself if the URL has its address or host name"
        )
        return [*lines, "", *wrapped(text, columns, "")]
    recent = _events(after[events][:most_events], paint, columns)
    if recent:
        lines += ["", paint("LAST PROBLEMS" if events == "errors" else "LAST EVENTS", "head"), *recent]
    return lines


def wrapped(text: str, columns: int, indent: str, first: str | None = None) -> list[str]:
    """Return `text` in lines of at most `columns` characters, 0 = in one line.

    Args:
        first: indent of the first line; None = `indent`.
    """
    first = indent if first is None else first
    width = max(columns, len(indent) + 20, len(first) + 20)  # a terminal without room for words breaks them itself
    if not columns or len(first) + len(text) <= width:
        return [first + text]
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _head(document: Document, paint: Paint, columns: int) -> list[str]:
    server = document["server"]
    state = paint(server["state"], _OF_STATE.get(server["state"], "bad"))
    version = document["versions"].get("edge-serve", "")
    name = paint(" ".join(filter(None, ("edge-serve", version))), "title")
    up = span(server["uptime_seconds"])
    line = f"{name} on {server['host']}: {state}, up {up}, process {server['pid']}"
    return [line, *wrapped(server["reason"], columns, "  ")] if server["reason"] else [line]


def _system(system: Document | None, paint: Paint, columns: int) -> list[str]:
    """Return the lines about the device image; none on another system."""
    if system is None:
        return []
    if system["problem"]:
        return wrapped(f"system    {system['problem']}", columns, _INDENT, "")
    parts = [f"version {system['version'] or NONE}, slot {system['slot'] or NONE}"]
    parts += [f"version {one['version']} is {one['state']}" for one in system["entries"] if one["state"] != "good"]
    parts += [] if system["provisioned"] else ["no settings yet"]
    lines = wrapped(f"system    {'; '.join(parts)}", columns, _INDENT, "")
    for fault in system["faults"]:
        text = f"{fault['text']} {fault['help']}"
        first, *more = wrapped(text, columns, _INDENT, "fault     ")
        lines += [first.replace("fault", paint("fault", "bad"), 1), *more]
    return lines


def _figures(document: Document, rates: Rates, *, measured: bool) -> list[str]:
    device, models = document["device"], [row for row in document["models"] if "totals" in row]
    totals, queue = totals_of(document), sum(row["pending"] for row in models)
    in_flight = sum(row.get("in_flight", 0) for row in models)
    counted = f"{totals.requests:,} in all, {totals.failures:,} failed, {in_flight:,} in flight, {queue:,} queued"
    now = f"{rate(rates.requests)}/s, median {duration(rates.median)}, 99 % {duration(rates.slowest)}; "
    load = f", load {device['load'][0]:.2f}" if device["load"] else ""
    lines = [
        f"requests  {now if measured else ''}{counted}",
        f"cpu       {percent(device['cpu_utilization'])} of {device['cores']} cores{load}",
        f"memory    {size(device['memory_used_bytes'])} of {size(device['memory_total_bytes'])} in use, "
        f"workers {size(sum(_memory_of(worker) or 0 for worker in document['workers']))}",
    ]
    if device["temperatures"]:
        lines.append("heat      " + ", ".join(f"{t['name']} {t['celsius']:.0f} C" for t in device["temperatures"]))
    return lines + [f"gpu       {_gpu_text(gpu)}" for gpu in device["gpus"]]


def _memory_of(process: Document) -> int | None:
    """Return the memory of a process, what it shares divided among those who share it; None = it is unknown."""
    found: int | None = process["pss_bytes"] if process["pss_bytes"] is not None else process["rss_bytes"]
    return found


def _model_memory(document: Document, row: Document) -> int | None:
    """Return the memory of a version's workers, or its share of one that has several models; None = it has none.

    `memory_bytes` of the row is resident memory, with which budgets are compared.
    """
    shares = [
        memory // max(1, len(worker["models"]))
        for worker in document["workers"]
        if worker["pid"] in row["workers"] and (memory := _memory_of(worker)) is not None
    ]
    return sum(shares) if shares else None


def _gpu_text(gpu: Document) -> str:
    if gpu.get("problem"):
        return f"{gpu['uuid']}: {gpu['problem']}"
    parts = [percent(gpu["utilization"]), f"memory {size(gpu['memory_used'])} of {size(gpu['memory_total'])}"]
    parts += [f"{gpu['temperature']:.0f} C"] if gpu["temperature"] is not None else []
    limit = f" of {gpu['power_limit']:.0f} W" if gpu["power_limit"] is not None else " W"
    parts += [f"{gpu['power_usage']:.1f}{limit}"] if gpu["power_usage"] is not None else []
    parts += [f"clocks lowered ({', '.join(gpu['throttling'])})"] if gpu.get("throttling") else []
    return ", ".join(parts)


_MODEL_HEAD = ("MODEL", "VERSION", "STATE", "REQ/S", "MEDIAN", "99 %", "QUEUE", "BUSY", "FAILED", "4XX", "MEMORY")


def _models(document: Document, each: Mapping[Key, Rates], paint: Paint, columns: int) -> list[str]:
    """Return a line for each version that is not unloaded, and one for the others.

    BUSY is the age of a version's oldest batch, red when that is older than `BUSY_SECONDS`.
    """
    on_gpus = any("gpu_memory_bytes" in row for row in document["models"])
    rows: list[Sequence[str]] = [(*_MODEL_HEAD, "GPU") if on_gpus else _MODEL_HEAD]
    notes = []
    loaded = [row for row in document["models"] if row["condition"] != "unloaded"]
    for row in loaded:
        rates, condition = each.get(key_of(row), Rates()), row["condition"]
        cells = [row["name"], row["version"] or NONE, paint(condition, _OF_STATE.get(condition, "bad"))]
        if "totals" in row:
            failed, busy = sum(row["totals"]["failures"].values()), row.get("oldest_batch_seconds")
            cells += [rate(rates.requests), duration(rates.median), duration(rates.slowest)]
            cells += [f"{row['pending']:,}", paint(age(busy), "bad" if (busy or 0.0) > BUSY_SECONDS else "")]
            cells += [f"{failed:,}", f"{row.get('client_errors', 0):,}", size(_model_memory(document, row))]
            cells += [size(row.get("gpu_memory_bytes"))] if on_gpus else []
        rows.append(cells)
        notes.append(row["reason"])
    if not document["models"]:
        return ["no models: put one into the repository, or load one over the API"]
    lines = _table_with_notes(rows, "<><>>>>>>>>>"[: len(rows[0])], notes, paint, columns) if loaded else []
    return [*lines, *_unloaded(document["models"], columns)]


def _unloaded(models: Iterable[Document], columns: int) -> list[str]:
    """Return a line with the versions that are unloaded, which could fill a screen with rows; `--json` has them all."""
    names = [f"{row['name']} {row['version']}".strip() for row in models if row["condition"] == "unloaded"]
    more = len(names) - _MOST_UNLOADED
    text = ", ".join(names[:_MOST_UNLOADED]) + (f", and {more} more" if more > 0 else "")
    return wrapped(f"unloaded  {text}", columns, _INDENT, "") if names else []


def _table_with_notes(
    rows: Sequence[Sequence[str]], sides: str, notes: Sequence[str], paint: Paint, columns: int
) -> list[str]:
    """Return a table with a head, and behind each other line its note, which has lines of its own where it does not
    fit."""
    head, *lines = table(rows, sides)
    found = [paint(head, "head")]
    for line, note in zip(lines, notes, strict=True):
        if not note or not columns or _width(line) + 2 + len(note) <= columns:
            found.append(f"{line}  {note}" if note else line)
        else:
            found += [line, *wrapped(note, columns, _INDENT)]
    return found


def _releases(updates: Document | None, now: float, paint: Paint, columns: int) -> list[str]:
    """Return the lines about updates; none without an agent."""
    if updates is None:
        return []
    rows, notes = [("RELEASE OF", "SERVES", "STATE", "NEXT", "FETCHED")], []
    for one in updates["bundles"]:
        share = f"{100 * one['done_bytes'] // one['total_bytes']} %" if one["total_bytes"] else NONE
        following = str(one["next"]) if one["next"] else NONE
        stage = one["stage"] or ("GOOD" if one["release"] else NONE)
        rows.append((one["name"], str(one["release"] or NONE), stage, following, share))
        notes.append(one["reason"])
    lines = ["", *wrapped(_check_line(updates, now, paint), columns, _INDENT, "")]
    return [*lines, *_table_with_notes(rows, "<><>>", notes, paint, columns)] if notes else lines


def _check_line(updates: Document, now: float, paint: Paint) -> str:
    if updates["problem"]:
        return f"updates   {paint(updates['problem'], 'bad')}"
    checked = (
        f"last check {span(max(0.0, now - updates['last_check']))} ago" if updates["last_check"] else "no check yet"
    )
    parts = [updates["state"] or "idle", checked]
    parts += ["the clock is not set"] if updates["clock_unset"] else []
    parts += [f"paused: {updates['paused']}"] if updates["paused"] else []
    parts += [f"{updates['error_reason']}: {updates['error']}"] if updates["error"] else []
    return f"updates   {'; '.join(parts)}"


def _workers(document: Document, paint: Paint) -> list[str]:
    server = {**document["server"], "label": "front end", "models": [], "restarts": 0, "lost": False}
    on_gpus = any("gpu_memory_bytes" in worker for worker in document["workers"])
    rows = [
        [
            worker["label"],
            str(worker["pid"]),
            size(_memory_of(worker)),
            *([size(worker.get("gpu_memory_bytes"))] if on_gpus else []),
            "down" if worker["lost"] else span(worker["uptime_seconds"]),
            str(worker["restarts"]),
            ", ".join(worker["models"]),
        ]
        for worker in [server, *document["workers"]]
    ]
    titles = ("WORKER", "PROCESS", "MEMORY", *(["GPU"] if on_gpus else []), "UP", "RESTARTS", "MODELS")
    head, *lines = table([titles, *rows], "<>>>>><" if on_gpus else "<>>>><")
    return [paint(head, "head"), *lines]


def _events(events: Iterable[Mapping[str, Any]], paint: Paint, columns: int) -> list[str]:
    lines: list[str] = []
    for event in events:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(event["time_ms"] / 1000))
        level = paint(f"{event['level']:<7}", _OF_LEVEL.get(event["level"], ""))
        again = f" (x {event['count']})" if event["count"] > 1 else ""
        before = f"{when}  {event['level']:<7}  "
        first, *more = wrapped(f"{event['text']}{again}", columns, _INDENT, before)
        lines += [f"{when}  {level}  {first[len(before) :]}", *more]
    return lines


def table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows as lines, with columns as wide as their widest cell, two blanks between them; a row may end early.

    Args:
        sides: `<` or `>` for each column.
    """
    widths = [max(_width(row[i]) if i < len(row) else 0 for row in rows) for i in range(len(sides))]
    lines = []
    for row in rows:
        cells = []
        for cell, side, width in zip(row, sides, widths, strict=False):
            blanks = " " * (width - _width(cell))
            cells.append(cell + blanks if side == "<" else blanks + cell)
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Return the number of characters that a terminal shows."""
    return len(COLOUR.sub("", text))


def _cleaned(value: Any) -> Any:
    """Return a document whose texts are lines without control characters: texts of models, clients, and other devices
    must not steer the terminal."""
    if isinstance(value, str):
        return one_line(" ".join(value.split()))
    if isinstance(value, Mapping):
        return {key: _cleaned(one) for key, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, (list, tuple)) else value


def rate(value: float) -> str:
    """Return a rate as text, such as `142` or `0.3`."""
    return "0" if not value else f"{value:,.0f}" if value >= 10 else f"{max(value, 0.1):.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration as text, such as `0.41 ms` or `1.20 s`."""
    if seconds is None:
        return NONE
    ms = seconds * 1000
    return f"{seconds:.2f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 100 else f"{ms:.{1 if ms >= 10 else 2}f} ms"


def age(seconds: float | None) -> str:
    """Return an age as text, such as `0.4 s`, `12 s`, or `3 min`."""
    if seconds is None:
        return NONE
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


def size(nbytes: int | None) -> str:
    """Return a size as text, such as `23 MiB` or `1.2 GiB`."""
    if nbytes is None:
        return NONE
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def percent(part: float | None) -> str:
    """Return a part of 1 as text, such as `25 %`."""
    return NONE if part is None else f"{part * 100:.0f} %"


def span(seconds: float | None) -> str:
    """Return a long time as text, such as `3 d 4 h`, `5 min`, or `12 s`."""
    if seconds is None:
        return NONE
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
