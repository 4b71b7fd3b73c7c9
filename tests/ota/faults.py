"""docs/ota_faults.md: each row of the fault list, and the tests with its mark, `@pytest.mark.fault("T1", ...)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: row -> what is done to a device
ROWS: Mapping[str, Mapping[str, str]] = {
    "Attacks on the metadata (TUF specification 1.5.2)": {
        "T1": "arbitrary install: wrong, absent, too few, or repeated signatures",
        "T2": "endless data, and a slow drip",
        "T3": "files and dependencies that a manifest does not need",
        "T4": "fast-forward of each role, then recovery",
        "T5": "freeze: expired metadata of each role, and expiry during the update",
        "T6": "a bad mirror first in the list",
        "T7": "mix-and-match of snapshot and targets",
        "T8": "rollback of each role, also after a lost file and a restored backup",
        "T9": "a compromised key of each role",
        "T10": "the manifest of another model or release under this one's name",
        "T11": "root chain: gaps, skips, self-signed roots, 257 roots",
        "T12": "delegations: cycles, terminating ones, overlapping paths, a role of two delegators",
        "T13": "hostile names of roles and targets",
        "T14": "an unknown major version, huge numbers, duplicate keys, deep nesting, NaN",
    },
    "Network": {
        "N1": "cut at 0, 1, 50, 99, and 100 %",
        "N2": "200 for a Range, a wrong Content-Range, 416, a changed ETag",
        "N3": "403, 404, 410, 429, 5xx; a cap on retries",
        "N4": "redirects: loops, to another scheme, to another host",
        "N5": "HTML of a captive portal",
        "N6": "a proxy that is down, or asks for a login",
        "N7": "TLS: expired, wrong name, wrong CA, an expired client certificate",
        "N8": "no name server",
        "N9": "one byte that changed on the way",
        "N10": "a publisher that publishes during the run, not atomically",
    },
    "Crashes and power cuts": {
        "C1": "an end before and after each step, and each file operation",
        "C2": "every state that a power cut can leave on the disk",
        "C3": "kill -9 of agent, server, candidate, and builder",
        "C4": "twice in a row, and during recovery",
        "C5": "two agents at once",
        "C6": "a torn or missing journal, or one that is newer than the disk",
        "C7": "dangling and wrong links in the model repository",
    },
    "Disk": {
        "D1": "a full disk at every write",
        "D2": "a quota",
        "D3": "no inodes",
        "D4": "errors of the disk, and one that is read-only",
        "D5": "garbage collection during an install",
        "D6": "bits that rot in blobs, releases, and engines",
        "D7": "modification times of a wrong clock",
        "D8": "a small TMPDIR",
    },
    "Manifests and files": {
        "U1": "paths that leave the release, links, devices, duplicates, too many and too long names",
        "U2": "wrong sizes, decompression bombs",
        "U3": "an unknown schema or kind, no variant, equal priorities",
        "U4": "paths that collide with the agent's own files",
        "U5": "ONNX external data outside of the release",
        "U6": "configurations that run code without the role engines",
    },
    "Variants and engines": {
        "V1": "wrong compute capability, architecture, TensorRT, or JetPack",
        "V2": "a plan that was changed, cut off, or comes from another device",
        "V3": "a build that takes too long, runs out of memory, or crashes",
        "V4": "the order in which variants are tried, and its reasons",
        "V5": "an update of the system that changes the hardware's fingerprint",
    },
    "Load and health": {
        "L1": "a load that fails, hangs, crashes, or ends with status 0",
        "L2": "golden tests: other values, NaN, other shapes, missing ones",
        "L3": "over the budget of latency or memory",
        "L4": "passes its golden test, and fails under load",
        "L5": "a crash loop over reboots",
        "L6": "the way back fails, too",
        "L7": "requests, streams, and sequences across the switch",
        "L8": "no traffic during probation",
        "L9": "no memory for both releases",
    },
    "Rollout": {
        "R1": "pause, halt, deny, pin, floor, and an older release that is wanted",
        "R2": "a rollout document that goes back",
        "R3": "percentages only add devices; 0 and 100",
        "R4": "a device's name that changes, or that two devices have",
        "R5": "switching hours over midnight and daylight saving",
        "R6": "the list of bad releases survives a restart, and is cleared by what should clear it",
        "R7": "a new release arrives during an update",
    },
    "Clock": {
        "K1": "1970, one second before the floor, 30 years ahead, backwards, set late",
        "K2": "40 days offline",
        "K3": "a lost clock floor",
    },
    "USB sticks and system images": {
        "X1": "a stick that is pulled out, stale, of another fleet, expired, or has links",
        "X2": "a switch of system slots during an install; a data partition of another device",
    },
}

_HEAD = """\
# Faults that updates were tested against

What can go wrong, and the tests that do it. After each of them the release that serves is complete, verified, and
serving, and a later run succeeds. Generated from the marks of the tests: `make docs`. `make test-ota` runs the slow
tests of `edge-ota`, and `make test` all others.
"""


@dataclass(frozen=True, slots=True)
class Test:
    """A marked test; `file` is relative to the checkout."""

    file: str
    name: str
    is_slow: bool


def marked() -> dict[str, list[Test]]:
    """Return the tests of each row, out of all test files."""
    found: dict[str, list[Test]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.fault(" in text:
            for row, test in _of_module(ast.parse(text), str(path.relative_to(ROOT))):
                found.setdefault(row, []).append(test)
    return found


def _of_module(module: ast.Module, file: str) -> Iterator[tuple[str, Test]]:
    shared = [
        one.value
        for one in module.body
        if isinstance(one, ast.Assign) and [ast.unparse(name) for name in one.targets] == ["pytestmark"]
    ]
    yield from _of_nodes(module.body, shared, file)


def _of_nodes(nodes: Sequence[ast.stmt], outer: Sequence[ast.expr], file: str) -> Iterator[tuple[str, Test]]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _of_nodes(node.body, [*outer, *node.decorator_list], file)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            marks = [call for root in (*node.decorator_list, *outer) for call in ast.walk(root)]
            slow = any(ast.unparse(one) == "pytest.mark.slow" for one in marks)
            for row in dict.fromkeys(row for call in marks for row in _rows(call, f"{file}: {node.name}")):
                yield row, Test(file, node.name, slow)


def _rows(node: ast.AST, place: str) -> Iterator[str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
        for row in node.args:
            assert isinstance(row, ast.Constant), f"{place}: the row of a fault is a literal"
            yield str(row.value)


def page() -> str:
    """Return the page."""
    found = marked()
    lines = [_HEAD]
    for title, rows in ROWS.items():
        lines += [f"## {title}", ""]
        for row, text in rows.items():
            lines += [f"**{row}** {text}", "", *map(_line, found[row]), ""]
    return "\n".join(lines[:-1]) + "\n"


def _line(test: Test) -> str:
    name = test.file.removeprefix("tests/").removesuffix(".py")
    return f"- [{name}](../{test.file}): {test.name.removeprefix('test_').replace('_', ' ')}{', slow' * test.is_slow}"
