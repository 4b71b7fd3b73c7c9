"""Runs all benchmarks: `make bench`, or `python -m benchmarks.run [NAME ...]`.

Writes JSON and a table to build/benchmarks/. Compares with the real Triton 2.51 where it is available
(benchmarks/peer.py), or with another checkout of edge-serve. About 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import time
import traceback
from pathlib import Path

from benchmarks import peer
from benchmarks.report import RESULTS, ROOT, SCRATCH, Report, last

NAMES = (
    "codec_alone", "http_alone", "scheduler_alone", "start_time", "memory", "installed_size", "large_tensors",
    "shared_memory", "idle_connections", "json_bodies", "decoupled", "end_to_end", "grpc_infer", "ensemble",
    "processor_time", "busy_machine", "sequences", "metrics_page", "files_passed", "gpu_front_end",
)  # fmt: skip

#: run only when named: they need programs that cannot be fetched, or are large, and take longer
NAMED = ("onnx_peer", "openvino_peer", "pytorch_pack")

FAILED = "failed"


def measure(name: str) -> Report:
    """Run one benchmark; a failure becomes part of the report, so that the others still run.

    Raises:
        peer.NoPeerError: it is one of NAMED, and its requirements are missing.
    """
    started, load = time.monotonic(), os.getloadavg()[0]
    try:
        report: Report = importlib.import_module(f"benchmarks.{name}").run()
    except peer.NoPeerError:
        raise
    except Exception as error:
        traceback.print_exc()
        report = Report(name, FAILED, notes=[f"failed: {error}"])
    ended = os.getloadavg()[0]
    report.notes.append(f"took {time.monotonic() - started:.0f} s; load {load:.1f} before, {ended:.1f} at the end")
    return report


def page(folder: Path) -> str:
    """Return a page with the newest figures of every benchmark in a folder; the days may differ."""
    written = [document for name in (*NAMES, *NAMED) if (document := last(name, folder)) is not None]
    tables = [f"{report.table()}measured {day}\n" for report, day in written]
    return "# Results of `make bench`\n\n" + "\n".join(tables)


def main() -> None:
    """Run the named benchmarks, all by default; exit 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)} (default: these); {', '.join(NAMED)}")
    parser.add_argument(
        "--record", action="store_true", help="write into benchmarks/results/, which is committed; then run `make docs`"
    )
    parser.add_argument(
        "--beside", metavar="CHECKOUT", help="compare with the edge-serve of another checkout in place of Triton"
    )
    arguments = parser.parse_args()
    if arguments.beside and arguments.record:
        parser.error("--record writes figures beside Triton: leave out --beside")
    if arguments.beside and not Path(arguments.beside, "edge_serve/server.py").is_file():
        parser.error(f"--beside {arguments.beside}: no checkout of edge-serve (expected edge_serve/server.py in it)")
    if arguments.beside:
        os.environ["BENCH_BESIDE"] = str(Path(arguments.beside).resolve())
    names = arguments.names or NAMES
    folder = RESULTS if arguments.record else SCRATCH
    if unknown := set(names) - {*NAMES, *NAMED}:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    compileall.compile_dir(ROOT / "edge_serve", quiet=1)  # as an installed server is
    failed = []
    for name in names:
        try:
            report = measure(name)
        except peer.NoPeerError as error:
            raise SystemExit(f"{name}: not measured: {error}") from None
        print(report.table(), flush=True)
        if report.question == FAILED:
            failed.append(name)  # keep the figures of the last good run
        else:
            report.write(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(page(folder))
    print(f"written to {folder.relative_to(ROOT)}/")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; what they said stands above")


if __name__ == "__main__":
    main()
