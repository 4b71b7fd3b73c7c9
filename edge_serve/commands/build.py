"""`edge-serve build`: makes TensorRT plans from ONNX on this device, of a model's versions or of one file.

`edge-ota` calls it as `build MODEL.onnx --output PLAN --cache DIR --timing-cache FILE --workspace-mb N --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edge_serve import __version__
from edge_serve.backends.tensorrt.plan import DEFAULT_FILENAME, meta_path
from edge_serve.commands.options import OptionParser, fail
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.config.model.layout import CONFIG_FILE
from edge_serve.config.settings.table import SEPARATOR
from edge_serve.config.stages import load_model_config
from edge_serve.devices.find import find_devices
from edge_serve.engines import options as build_options
from edge_serve.engines.model import ONNX_FILE, file_request, model_request, plan_output
from edge_serve.engines.options import EngineOptions
from edge_serve.engines.process import run_build
from edge_serve.engines.request import BuildProgress, BuiltEngine, EngineRequest
from edge_serve.engines.settings import DEFAULT_CACHE_MB, CacheSettings, default_directory
from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound
from edge_serve.files import path_of
from edge_serve.messages.line import one_line
from edge_serve.models.repository.repository import versions
from edge_serve.models.repository.version_policy import choose
from edge_serve.systemd.unit import environment_of, find_unit
from edge_serve.workers.launch.interpreter import own_interpreter

GOOD, BAD = 0, 1
#: version of the JSON document; raised when a member changes its meaning or is removed
SCHEMA = 1
_REPOSITORY = "EDGE_SERVE_MODEL_REPOSITORY"
_ONNX = ".onnx"


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; its exit status."""
    found = _parser().parse(arguments)
    built: list[BuiltEngine] = []
    error = ""
    try:
        cache = cache_of(found, environ)
        options = build_options.options_of(found)
        target: str = found.model
        if target.endswith(_ONNX):
            requests = [_of_file(Path(target), found.output, cache, options, found.device)]
        else:
            if found.output:
                raise InvalidArgument(f"--output is for an ONNX file: plans of model '{target}' lie in its versions")
            directory = find_model(target, found.model_repository, environ)
            requests = _of_model(directory, cache, options, found.device)
        requests = [replace(one, plugins=(*one.plugins, *found.plugin)) for one in requests]
        for request in requests:
            built.append(wait_for_build(request, progress_printer(Path(request.onnx).name, quiet=found.json)))
            if not found.json:
                print(report(built[-1]), flush=True)
    except EdgeServeError as problem:
        error = problem.message
    except OSError as problem:
        if not (path := path_of(problem)):  # of standard output
            raise
        error = f"cannot read '{path}': {problem.strerror}"
    if found.json:
        print(json.dumps(document(built, error)))
    elif error:
        return fail(error)
    return BAD if error else GOOD


def wait_for_build(request: EngineRequest, on_progress: Callable[[BuildProgress], None]) -> BuiltEngine:
    """Build a plan with the interpreter of this program, and wait for it. Raises as `run_build`."""
    interpreter = own_interpreter()
    return asyncio.run(run_build(request, interpreter.command, interpreter.variables, on_progress))


def document(built: Sequence[BuiltEngine], error: str) -> dict[str, Any]:
    """Return the JSON document (docs/build.md)."""
    return {
        "schema": SCHEMA,
        "edge_serve": __version__,
        "ok": not error,
        "error": error,
        "seconds": round(sum(one.seconds for one in built), 3),
        "engines": [{**asdict(one), "meta": str(meta_path(Path(one.plan)))} for one in built],
    }


def report(one: BuiltEngine) -> str:
    """Return the report about an engine, for people."""
    how = "from the cache" if one.cached else f"built in {one.seconds:.1f} s"
    device = f"{one.device}, " if one.device else ""
    lines = [
        f"{one.plan}: {how}, {one.bytes / 1e6:.1f} MB",
        f"  TensorRT {one.tensorrt}, {device}compute capability {one.capability}, "
        f"precision {', '.join(one.flags) or 'of the ONNX file'}",
    ]
    for number, profile in enumerate(one.profiles):
        ranges = ", ".join(f"{name} {_range(*shapes)}" for name, shapes in profile.items())
        lines.append(f"  profile {number}: {ranges}")
    return "\n".join(map(one_line, lines))  # with names of tensors


def _range(least: Sequence[int], best: Sequence[int], most: Sequence[int]) -> str:
    texts = ["x".join(map(str, shape)) or "scalar" for shape in (least, best, most)]
    return texts[0] if texts[0] == texts[2] else f"{texts[0]} to {texts[2]} (best {texts[1]})"


def progress_printer(name: str, *, quiet: bool) -> Callable[[BuildProgress], None]:
    """Return a function that prints the progress of a build after a name; it prints nothing if there is no terminal."""
    if quiet or not sys.stderr.isatty():
        return lambda progress: None
    return lambda progress: print(f"\r\x1b[K{name}: {progress}", end="\r", file=sys.stderr, flush=True)


def cache_of(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> CacheSettings:
    """Return the cache that the options `--cache`, `--cache-mb`, and `--timing-cache` name, or else the user's.

    Raises:
        InvalidArgument: the timing cache is a directory, a device, or a pipe.
    """
    times: str = options.timing_cache
    if os.path.exists(times) and not os.path.isfile(times):
        raise InvalidArgument(f"--timing-cache '{times}' is no regular file: name the file to keep it in")
    directory = Path(options.cache) if options.cache else default_directory(environ)
    return CacheSettings(directory, options.cache_mb, os.path.abspath(times) if times else "")


def _of_file(onnx: Path, output: str, cache: CacheSettings, options: EngineOptions, device: int) -> EngineRequest:
    """Return the request for one ONNX file; with the model's configuration if the file is in a version directory."""
    plan = Path(output) if output else onnx.with_name(DEFAULT_FILENAME)
    _check_files(onnx, plan)
    gpus = find_devices()
    model = onnx.absolute().parent.parent
    if onnx.absolute().parent.name.isdigit() and (model / CONFIG_FILE).is_file():
        config = model_config_to_json(load_model_config(model, auto_complete=True))
        config |= {"default_model_filename": onnx.name, "cc_model_filenames": {}}
        request = model_request(config, onnx.absolute().parent, cache, gpus, {}, options, device)
    else:
        request = file_request(onnx, cache, gpus, options, device)
    return replace(request, output=str(plan.absolute()))


def _check_files(onnx: Path, plan: Path) -> None:
    """Check that the ONNX file is no pipe, and that the plan may replace the file in its place, if one is there.

    Raises:
        InvalidArgument: one is a directory, a device, or a pipe, or both are the same file.
    """
    if onnx.exists() and not onnx.is_file():
        raise InvalidArgument(f"'{onnx}' is no regular file, expected an ONNX file")
    if plan.exists() and not plan.is_file():
        raise InvalidArgument(f"--output '{plan}' is there and is no regular file: name another place for the plan")
    if plan.exists() and onnx.exists() and plan.samefile(onnx):
        raise InvalidArgument(f"--output '{plan}' is the ONNX file itself: name another place for the plan")


def _of_model(directory: Path, cache: CacheSettings, options: EngineOptions, device: int) -> list[EngineRequest]:
    """Return a request for each version that the configuration serves."""
    loaded = load_model_config(directory, auto_complete=True)
    config = model_config_to_json(loaded)
    chosen = choose(loaded.version_policy, versions(directory))
    if not chosen:
        raise InvalidArgument(f"model '{directory.name}' has no version, expected '{directory}/1/{ONNX_FILE}'")
    gpus = find_devices()
    return [
        replace(
            model_request(config, directory / str(version), cache, gpus, {}, options, device),
            output=str((plan_output(directory / str(version), config)).absolute()),
        )
        for version in chosen
    ]


def find_model(name: str, repositories: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Return the directory of a model: a path, or a name in the repositories that are given or that the service has.

    Raises:
        NotFound: there is none.
    """
    if os.sep in name and Path(name).is_dir():
        return Path(name).absolute()
    roots = list(repositories) or environ.get(_REPOSITORY, "").split(SEPARATOR)
    if not any(roots) and (unit := find_unit()) is not None:
        roots = environment_of(unit).values.get(_REPOSITORY, "").split(SEPARATOR)
    found = [Path(root, name) for root in roots if root and Path(root, name).is_dir()]
    if found:
        return found[0].absolute()
    if not any(roots):
        raise NotFound(
            f"no model repository to look for '{name}' in: name one with --model-repository DIR, or give the path of "
            "the model's directory or of an ONNX file"
        )
    raise NotFound(f"no model '{name}' in {', '.join(filter(None, roots))}: expected its directory there")


def _parser() -> OptionParser:
    parser = OptionParser(
        "build",
        "Build TensorRT plans from ONNX on this device, of each version of a model or of one file. Equal builds come "
        "from a cache. Shapes and precision that are not given come from config.pbtxt (docs/build.md).",
        f"Exit status: {GOOD} built, {BAD} not built, with the reason, 2 wrong use, 130 interrupted.",
        "edge-serve build MODEL [option...]",
    )
    parser.add_argument("model", metavar="MODEL", help="name of a model, its directory, or an ONNX file")
    parser.add_argument("--output", metavar="PLAN", default="", help="plan of an ONNX file (model.plan beside it)")
    parser.add_argument(
        "--model-repository", metavar="DIR", action="append", default=[], help="where models lie (the service's)"
    )
    parser.add_argument("--cache", metavar="DIR", default="", help="engines ($CACHE_DIRECTORY/engines)")
    parser.add_argument(
        "--cache-mb", metavar="N", type=build_options.number(0, 1 << 30), default=DEFAULT_CACHE_MB,
        help=f"size of the cache ({DEFAULT_CACHE_MB})",
    )  # fmt: skip
    parser.add_argument("--timing-cache", metavar="FILE", default="", help="times of kernels (in the cache)")
    parser.add_argument(
        "--device", metavar="N", type=build_options.number(0, 1 << 10), default=0, help="GPU to build on and for (0)"
    )
    parser.add_argument("--plugin", metavar="FILE", action="append", default=[], help="library with plugins (repeat)")
    build_options.add_precisions(parser)
    build_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
