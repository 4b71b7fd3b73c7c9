"""All benchmarks: `make bench`, or `python -m benchmarks.run [NAME ...]`. JSON and a table into benchmarks/results/.

Beside the real Triton 2.51 where it can be had (benchmarks/peer.py). Under 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import importlib
import time
import traceback

from benchmarks.report import RESULTS, Report

NAMES = (
    "codec_alone", "http_alone", "scheduler_alone", "start_time", "memory", "installed_size", "large_tensors",
    "shared_memory", "idle_connections", "json_bodies", "decoupled", "end_to_end", "grpc_infer", "ensemble",
    "sequences",
)  # fmt: skip


def measure(name: str) -> Report:
    """Run one; a failure is part of the report, so that the others still run."""
    started = time.monotonic()
    try:
        report: Report = importlib.import_module(f"benchmarks.{name}").run()
    except Exception as error:
        traceback.print_exc()
        report = Report(name, "failed", notes=[f"failed: {error}"])
    report.notes.append(f"took {time.monotonic() - started:.0f} s")
    return report


def main() -> None:
    """Run the named ones, all by default; exit 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; default: all")
    names = parser.parse_args().names or NAMES
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    reports = []
    for name in names:
        reports.append(measure(name))
        reports[-1].write()
        print(reports[-1].table(), flush=True)
    if len(reports) == len(NAMES):
        (RESULTS / "README.md").write_text("# Results of `make bench`\n\n" + "\n".join(r.table() for r in reports))
    raise SystemExit(any(report.question == "failed" for report in reports))


if __name__ == "__main__":
    main()
