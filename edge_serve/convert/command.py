"""`edge-serve convert`: its options, the table of the precisions, and the choice of the one that is kept."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge_serve.commands.build import cache_of, progress_printer
from edge_serve.commands.options import OptionParser, fail
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.layout import CONFIG_FILE
from edge_serve.convert import candidate, trial
from edge_serve.convert.candidate import PRECISIONS, TOLERANCES
from edge_serve.convert.samples import Sample, read_samples
from edge_serve.convert.trial import Difference, Trial
from edge_serve.devices.find import find_devices
from edge_serve.engines import options as build_options
from edge_serve.engines.settings import DEFAULT_CACHE_MB
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.files import path_of
from edge_serve.init import onnx_file
from edge_serve.init.directory import ModelPlace, new_directory
from edge_serve.messages.line import one_line
from edge_serve.observe.log import log
from edge_serve.observe.metrics.gpu import find_gpus
from edge_serve.records import slotted

GOOD, BAD = 0, 1
SCHEMA = 1
#: samples that are compared, at most
_SAMPLES = 32
#: the largest --max-batch and --samples
_MOST = 1 << 20
_REFERENCE, _FASTEST = "onnxruntime", "fastest"
_MS, _MB = "{:.2f} ms", "{:.1f} MB"


@slotted
class Row:
    """One precision in the table; the first row is ONNX Runtime's on the CPU, the reference.

    Attributes:
        problem: why it was not built, does not run, or says little as a reference; "" = none.
    """

    name: str
    tolerance: tuple[float, float] = (0.0, 0.0)
    trial: Trial | None = None
    difference: Difference | None = None
    file_bytes: int = 0
    build_seconds: float = 0.0
    problem: str = ""

    @property
    def fits(self) -> bool:
        """Return whether it runs, with answers within its tolerance."""
        return self.trial is not None and self.difference is not None and self.difference.fits


@slotted
class Conversion:
    """The model to convert, and the options of the command.

    Attributes:
        say: prints a line of progress.
        scratch: directory of the models that are compared.
    """

    options: argparse.Namespace
    config: pb.ModelConfig
    samples: list[Sample]
    scratch: Path
    say: Callable[[str], None]


@log.silenced()
def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = _parser()
    options = parser.parse(arguments)
    names = _precisions(parser, options)
    kept = recorded = error = ""
    rows: list[Row] = []
    try:
        with new_directory(options.model_repository, options.model) as place, tempfile.TemporaryDirectory() as folder:
            kept, recorded = _convert(options, names, place, Path(folder), rows)
            if not kept:
                raise InvalidArgument(f"{_refusal(options, rows)}: nothing was written")
    except EdgeServeError as problem:
        error = problem.message.strip()
    except shutil.Error as problem:  # its text is a list of tuples
        error = f"cannot write the model: {problem.args[0][0][2]}"
    except OSError as problem:
        error = f"cannot write the model: {path_of(problem)}: {problem.strerror}"
    if options.json:
        print(json.dumps(document(rows, kept, recorded, error), allow_nan=False))
        return BAD if error else GOOD
    if rows:
        print(table(rows))
    if error:
        return fail(error)
    print(f"\nwrote {options.model_repository / options.model}: {kept}, {recorded}")
    return GOOD


def _precisions(parser: OptionParser, options: argparse.Namespace) -> list[str]:
    """Return the precisions to try, each once. Others that the options name are wrong use."""
    given = (
        candidate.default_precisions(find_devices()) if options.precisions is None else options.precisions.split(",")
    )
    names = list(dict.fromkeys(name.strip().lower() for name in given))
    if unknown := [name for name in names if name not in PRECISIONS]:
        parser.error(f"--precisions has '{unknown[0]}', expected {', '.join(PRECISIONS)}")
    named = [("--keep", options.keep), *(("--onnx-for", name) for name, _ in options.onnx_for)]
    for option, name in named:
        if name not in (_FASTEST, *names):
            parser.error(f"{option} names {name}, which is not tried: --precisions={','.join([*names, name])}")
    return names


def _refusal(options: argparse.Namespace, rows: Sequence[Row]) -> str:
    """Return why no precision is kept."""
    tried = [row for row in rows[1:] if options.keep in (_FASTEST, row.name)]
    if all(row.trial is None for row in tried):
        return f"{' and '.join(row.name for row in tried)} cannot be built or run"
    return "no precision has answers within its tolerance"


def _convert(
    options: argparse.Namespace, names: Sequence[str], place: ModelPlace, scratch: Path, rows: list[Row]
) -> tuple[str, str]:
    """Fill the rows, and write the model of the fastest precision that fits. Return its name and what was recorded as
    its golden test; "" = none fits.
    """

    def say(text: str) -> None:
        if not options.json:
            print(text, file=sys.stderr, flush=True)

    with new_directory(scratch / "reference", options.model) as original:
        config = onnx_file.make(original, options.onnx)
        on_cpu = pb.ModelConfig(instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_CPU, count=1)])
        on_cpu.MergeFrom(config)
        original.write(CONFIG_FILE, str(on_cpu))
    samples = read_samples(options.inputs, config, options.samples)
    say(f"running {len(samples)} samples on ONNX Runtime (CPU)")
    work = Conversion(options, config, samples, scratch, say)
    reference = trial.run_trial(scratch / "reference", options.model, samples, list)
    problem = trial.not_finite(reference)
    rows.append(Row(_REFERENCE, trial=reference, file_bytes=options.onnx.stat().st_size, problem=problem))
    for name in names:
        rows.append(_try(work, name, reference))
    wanted = [row for row in rows[1:] if row.fits and options.keep in (_FASTEST, row.name)]
    best = min(wanted, key=lambda row: row.trial.median_ms if row.trial else 0.0, default=None)
    if best is None:
        return "", ""
    made = scratch / best.name / options.model
    shutil.copytree(made, place.staged, dirs_exist_ok=True)
    return best.name, candidate.record(place, samples, reference, *best.tolerance)


def _try(work: Conversion, name: str, reference: Trial) -> Row:
    """Build one precision and run it. An error is the row's problem: the others are still tried."""
    options, row = work.options, Row(name, _tolerance(work.options, name))
    onnx = dict(options.onnx_for).get(name, options.onnx)
    config = candidate.configured(work.config, options.model, options.max_batch)
    gpus = find_devices()
    cache, engine_options = cache_of(options), build_options.options_of(options)
    work.say(f"{name}: building")
    try:
        with new_directory(work.scratch / name, options.model) as place:
            show = progress_printer(name, quiet=options.json)
            built = candidate.build(place, config, onnx, name, engine_options, cache, gpus, show)
        row.build_seconds, row.file_bytes = built.seconds, built.bytes
        work.say(f"{name}: running {len(work.samples)} samples")
        row.trial = trial.run_trial(work.scratch / name, options.model, work.samples, find_gpus())
        row.difference = trial.compare(row.trial, reference, *row.tolerance)
        row.problem = row.difference.problem
    except EdgeServeError as problem:
        row.problem = problem.message.strip()
    return row


def _tolerance(options: argparse.Namespace, name: str) -> tuple[float, float]:
    rtol, atol = TOLERANCES[name]
    return (rtol if options.rtol is None else options.rtol), (atol if options.atol is None else options.atol)


def table(rows: Sequence[Row]) -> str:
    """Return the rows for people; a problem stands below the table."""
    lines = [["PRECISION", "LARGEST DIFFERENCE", "BEYOND", "MEDIAN", "95 %", "FILE", "DEVICE", "BUILD"]]
    lines += [_cells(row) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    problems = [line for row in rows if row.problem for line in f"{row.name}: {row.problem}".splitlines()]
    return "\n".join([*texts, *map(one_line, problems)])  # with names from a model's file


def _cells(row: Row) -> list[str]:
    if row.trial is None:
        return [row.name, *["-"] * 7]
    off, device = row.difference, row.trial.device_bytes
    beyond = "" if off is None else f"{off.beyond} of {off.values}"
    return [
        row.name,
        "reference" if off is None else f"{off.largest:.2g} ({off.relative:.2g} relative)",
        beyond,
        _MS.format(row.trial.median_ms),
        _MS.format(row.trial.p95_ms),
        _MB.format(row.file_bytes / 1e6),
        "-" if device is None else _MB.format(device / 1e6),
        f"{row.build_seconds:.1f} s" if off is not None else "",
    ]


def document(rows: Sequence[Row], kept: str, recorded: str, error: str) -> dict[str, Any]:
    """Return the JSON document (docs/convert.md)."""
    found = []
    for row in rows:
        entry: dict[str, Any] = {"precision": row.name, "fits": row.fits, "problem": row.problem}
        if row.trial is not None:
            entry |= {
                "median_ms": round(row.trial.median_ms, 3),
                "p95_ms": round(row.trial.p95_ms, 3),
                "device_bytes": row.trial.device_bytes,
                "file_bytes": row.file_bytes,
                "build_seconds": round(row.build_seconds, 3),
            }
        if row.difference is not None:
            off = row.difference
            entry |= {"largest": _finite(off.largest), "relative": _finite(off.relative)}
            entry |= {"beyond": off.beyond, "values": off.values}
            entry |= {"rtol": row.tolerance[0], "atol": row.tolerance[1]}
        found.append(entry)
    return {
        "schema": SCHEMA, "ok": not error, "error": error, "kept": kept, "recorded": recorded, "precisions": found
    }  # fmt: skip


def _finite(value: float) -> float | None:
    """Return a number as JSON can have it; None = it is infinite or NaN."""
    return value if math.isfinite(value) else None


def _other_onnx(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in PRECISIONS or not path:
        raise argparse.ArgumentTypeError(f"found '{text}', expected PRECISION=FILE, such as fp16=model_fp16.onnx")
    return name, Path(path)


def _tolerated(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (found := float(text)) < math.inf:
            return found
    raise argparse.ArgumentTypeError(f"found '{text}', expected a number from 0")


def _parser() -> OptionParser:
    parser = OptionParser(
        "convert",
        "Make a TensorRT model from ONNX: build several precisions, compare the answers to real inputs with ONNX "
        "Runtime's on the CPU, and write the fastest that is within its tolerance (docs/convert.md).",
        f"Exit status: {GOOD} written, {BAD} not written (and nothing is left), 2 wrong use, 130 interrupted.",
        usage="edge-serve convert MODEL --onnx FILE --inputs FILE.npz [options]",
    )
    parser.add_argument("model", metavar="MODEL", help="name of the new model")
    parser.add_argument("--onnx", metavar="FILE", type=Path, required=True, help="the ONNX file")
    parser.add_argument("--inputs", metavar="FILE", type=Path, required=True, help="real inputs, by numpy.savez")
    parser.add_argument("--precisions", metavar="P,P", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--onnx-for", metavar="P=FILE", type=_other_onnx, action="append", default=[],
                        help="another ONNX file for a precision")  # fmt: skip
    parser.add_argument("--keep", metavar="P", default=_FASTEST, choices=(_FASTEST, *PRECISIONS), help="write this")
    count = build_options.number(1, _MOST)
    parser.add_argument("--max-batch", metavar="N", type=count, default=8, help="most rows of a batch (8)")
    parser.add_argument("--samples", metavar="N", type=count, default=_SAMPLES, help=argparse.SUPPRESS)
    parser.add_argument("--rtol", metavar="T", type=_tolerated, help="tolerance (fp32 0.001, fp16 0.01); so --atol")
    parser.add_argument("--atol", metavar="T", type=_tolerated, help=argparse.SUPPRESS)
    parser.add_argument("--model-repository", metavar="DIR", type=Path, default=Path("."), help="place of MODEL (here)")
    parser.add_argument("--cache", metavar="DIR", default="", help=argparse.SUPPRESS)
    size = build_options.number(0, 1 << 30)
    parser.add_argument("--cache-mb", metavar="N", type=size, default=DEFAULT_CACHE_MB, help=argparse.SUPPRESS)
    parser.add_argument("--timing-cache", metavar="FILE", default="", help=argparse.SUPPRESS)
    build_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
