#!/usr/bin/env python3
"""Replays the conformance kit's transcripts against this checkout: `make conformance KIT=<folder>`.

A step may differ from what Triton 2.51 was recorded to do only if the table of docs/conformance.md lists it with a
reason. Exit code 0: every other step passes, and no listed step passes unexpectedly.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXCEPTIONS = ROOT / "docs/conformance.md"
SERVER = (
    f"{ROOT}/.venv/bin/edge-serve --model-repository={{repo}} --http-port={{http}} --metrics-port={{metrics}} "
    "--grpc-port={grpc} --allow-client-shm=true {flags}"
)
#: the tags that this server must pass
TAGS = (
    "infer_json", "infer_binary", "dtypes", "outputs", "validation", "malformed", "parameters", "header_forward",
    "classification", "optional", "reshape", "versions", "compression", "protocol", "paths", "methods", "names",
    "health", "metadata", "config", "stats", "metrics", "index", "repo_control", "load_errors", "autoconfig", "startup",
    "restricted", "batching", "queue", "priority", "instances", "warmup", "errors", "robustness", "cache", "rate_limit",
    "sequence", "state", "ensemble", "poll", "trace", "logging", "bls", "decoupled", "generate", "generate_stream",
    "grpc_config", "grpc_dtypes", "grpc_errors", "grpc_health", "grpc_infer", "grpc_metadata", "grpc_parameters",
    "grpc_repository", "grpc_restricted", "grpc_sequence", "grpc_settings", "grpc_shm", "grpc_stats", "grpc_stream",
    "grpc_validation",
    "shm",
)  # fmt: skip
_ROW = re.compile(r"^\| `([^`]+)` \| (\d+|all) \| (.+) \|$")


@dataclass(frozen=True)
class Verdict:
    """The result of a replay.

    Attributes:
        failed: steps that failed and are not listed; stale: listed rows of which no step failed.
        excused: steps that failed as listed.
    """

    passed: int
    failed: list[str]
    excused: list[str]
    stale: list[str]


def exceptions_in(text: str) -> dict[tuple[str, str], str]:
    """(case, step number or "all") -> reason, from the rows of a page."""
    rows = (_ROW.match(line) for line in text.splitlines())
    return {(row[1], row[2]): row[3] for row in rows if row}


def judge(results: list[dict[str, Any]], exceptions: dict[tuple[str, str], str]) -> Verdict:
    """Return the failures without a listed reason, and the listed steps that do not fail."""
    passed, failed, excused, used = 0, [], [], set()
    for result in results:
        if result["advisory"]:
            continue
        if result["ok"]:
            passed += 1
            continue
        name = f"{result['case']} [{result['step']}]"
        keys = [(result["case"], step) for step in (str(result["step"]), "all") if (result["case"], step) in exceptions]
        used.update(keys)
        if keys:
            excused.append(f"{name}: {exceptions[keys[0]]}")
        else:
            failed.append(f"{name}: {'; '.join(result['fails'][:2])}")
    replayed = {result["case"] for result in results}
    stale = [f"{case} [{step}]" for case, step in exceptions if (case, step) not in used and case in replayed]
    return Verdict(passed, failed, excused, stale)


def replay(kit: Path, only: str, port: int) -> list[dict[str, Any]]:
    """Run the kit and return its results, step by step."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "results.json"
        command = [sys.executable, str(kit / "run.py"), "--server-cmd", SERVER, "--only", only]
        subprocess.run([*command, "--cases", str(kit / "cases"), "--port", str(port), "--json", str(report)])
        if not report.exists():
            sys.exit("conformance: the kit ended without results")
        results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
        return results


def main() -> None:
    """Replay, compare with the listed differences, and print the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--only", default=",".join(TAGS), help="tags or case names")
    parser.add_argument("--port", type=int, default=18500)
    arguments = parser.parse_args()
    results = replay(arguments.kit, arguments.only, arguments.port)
    verdict = judge(results, exceptions_in(EXCEPTIONS.read_text() if EXCEPTIONS.exists() else ""))
    for title, lines in (
        ("differs as listed in docs/conformance.md", verdict.excused),
        ("listed in docs/conformance.md, yet passes: remove the row", verdict.stale),
        ("differs and is not listed", verdict.failed),
    ):
        for line in lines:
            print(f"{title}: {line}")
    messages, total = (sum(result["messages"][index] for result in results) for index in (0, 1))
    steps = verdict.passed + len(verdict.failed) + len(verdict.excused)
    print(
        f"conformance: {verdict.passed} of {steps} steps, {len(verdict.excused)} differ as listed, "
        f"{len(verdict.failed)} fail; messages {100 * messages / max(1, total):.1f} %"
    )
    sys.exit(bool(verdict.failed or verdict.stale or not steps))


if __name__ == "__main__":
    main()
