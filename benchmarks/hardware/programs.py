"""Steps that run other programs: the tests, the tests under compute-sanitizer, and Triton's examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.hardware.outcome import Skipped
from benchmarks.report import ROOT, Row
from benchmarks.servers import DEMO, Server, edge_serve, repository

#: where the CUDA toolkit has it, which is seldom on the path
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
#: tests of restrictions under which the sanitizer itself does not start
UNDER_RESTRICTIONS = ("tests/gpu/test_visible.py", "tests/gpu/test_unit.py")
EXAMPLES = ("simple_http_cudashm_client.py", "simple_grpc_cudashm_client.py")
SOURCE = "https://github.com/triton-inference-server/client, folder src/python/examples"
#: tests run many times slower there; without the plug-in, its marks and settings are unknown
_NO_TIMEOUTS = (
    "-p", "no:timeout", "-W", "ignore::pytest.PytestUnknownMarkWarning", "-W", "ignore::pytest.PytestConfigWarning",
)  # fmt: skip
TESTS_SECONDS, SANITIZER_SECONDS = 3000, 7200


def tests() -> Row:
    """Run the tests that are marked `gpu`; those that are skipped are named with their reason."""
    row, _ = _pytest([], [], TESTS_SECONDS)
    return row


def sanitizer() -> Row:
    """Run these tests under compute-sanitizer, without those of restrictions.

    Raises:
        Skipped: it is not installed.
        RuntimeError: no test passed, or no process was examined.
    """
    program = next(filter(None, map(shutil.which, SANITIZERS)), None)
    if program is None:
        raise Skipped("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    # the tests provoke errors of the API on purpose
    prefix = [program, "--tool=memcheck", "--target-processes=all", "--report-api-errors=no"]
    options = ["-s", *_NO_TIMEOUTS, *(f"--ignore={path}" for path in UNDER_RESTRICTIONS)]
    row, output = _pytest(prefix, options, SANITIZER_SECONDS)
    if not row["passed"]:
        raise RuntimeError(f"no test passed under {program}: {row['failed'][:3] or 'all were skipped'}")
    return {**row, **sanitizer_summary(output)}


def sanitizer_summary(output: str) -> Row:
    """Return the errors of all processes, and the first lines about them.

    Raises:
        RuntimeError: no process reported anything, so nothing was examined.
    """
    counts = [int(one) for one in re.findall(r"^=+ ERROR SUMMARY: (\d+) error", output, re.MULTILINE)]
    if not counts:
        raise RuntimeError(f"compute-sanitizer reported no process: {output.strip()[-500:]}")
    lines = [line for line in output.splitlines() if re.match(r"=+ (?!ERROR SUMMARY|COMPUTE-SANITIZER)\S", line)]
    return {"processes": len(counts), "errors": sum(counts), "first errors": lines[:20]}


def _pytest(prefix: Sequence[str], options: Sequence[str], seconds: float) -> tuple[Row, str]:
    """Run the marked tests. Return what became of them, and the output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        command = [*prefix, sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *options]
        command.append(f"--junitxml={path}")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=seconds)
        if not path.exists():
            raise RuntimeError(f"pytest wrote no results: {(done.stderr or done.stdout).strip()[-500:]}")
        return told(ET.parse(path).getroot().iter("testcase")), done.stdout + done.stderr


def told(cases: Iterable[ET.Element]) -> Row:
    """Return how many tests passed, which failed or were skipped, and the figures that they recorded."""
    row: Row = {"passed": 0, "failed": [], "skipped tests": [], "figures": {}}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        row["figures"] |= {str(one.get("name")): one.get("value") for one in case.iter("property")}
        if (skipped := case.find("skipped")) is not None:
            row["skipped tests"].append(f"{name}: {skipped.get('message')}")
        elif (failed := next(iter(case.findall("failure") + case.findall("error")), None)) is not None:
            row["failed"].append(f"{name}: {failed.get('message')}")
        else:
            row["passed"] += 1
    return row


def cudashm_examples(folder: Path | None, kind: str) -> Row:
    """Run Triton's unmodified examples for CUDA shared memory against the model `simple`.

    Raises:
        Skipped: their folder is not given, or has none.
        RuntimeError: one does not print PASS.
    """
    scripts = [folder / name for name in EXAMPLES] if folder else []
    if not scripts or not all(script.is_file() for script in scripts):
        raise Skipped(f"no examples of Triton: give their folder with --triton-examples ({SOURCE})")
    with repository([DEMO / "simple"]) as models:
        with (models / "simple/config.pbtxt").open("a") as config:
            config.write(f"instance_group {{ kind: KIND_{kind} }}\n")
        with edge_serve(models, "--allow-client-shm=true", "--allow-grpc=true") as server:
            return {script.name: _example(script, server) for script in scripts}


def _example(script: Path, server: Server) -> str:
    address = server.grpc_address if "grpc" in script.name else server.address
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(script), "-u", address]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    if done.returncode or "PASS" not in done.stdout:
        raise RuntimeError(f"{script.name}: {(done.stderr or done.stdout).strip()[-500:]}")
    return "PASS"
