"""`edge-serve init`: its options, and the message that says what was written and what to do next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from edge_serve.commands.options import OptionParser, fail
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.layout import is_model
from edge_serve.errors import EdgeServeError
from edge_serve.files import path_of
from edge_serve.init import ensemble, onnx_file, python_model
from edge_serve.init.directory import ModelPlace, new_directory
from edge_serve.init.example import curl
from edge_serve.models.repository.repository import Repository
from edge_serve.observe.log import log

#: directories that are no models and that the note names; of others it says that there are more
_MOST_NAMES = 4


@log.silenced()
def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = _parser()
    options = parser.parse(arguments)
    members = [name for name in options.ensemble.split(",") if name] if options.ensemble is not None else []
    if options.ensemble is not None and not members:
        parser.error("--ensemble expects the names of models, separated by commas")
    try:
        with new_directory(options.model_repository, options.model) as place:
            if options.onnx is not None:
                config = onnx_file.make(place, options.onnx)
            elif members:
                config = ensemble.make(place, members)
            else:
                config = python_model.make(place)
    except EdgeServeError as error:
        return fail(error.message.strip())
    except OSError as error:
        where = f"'{path_of(error)}': " if error.filename else ""
        return fail(f"cannot write the model: {where}{error.strerror}")
    print(_next_steps(place, config))
    return 0


def _next_steps(place: ModelPlace, config: pb.ModelConfig) -> str:
    directory = place.repository / place.name
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    repository, name = shlex.quote(str(place.repository)), shlex.quote(place.name)
    lines = [
        f"wrote {directory}: {', '.join(files)}",
        "",
        f"edge-serve check {repository} --model {name} --infer",
        f"edge-serve --model-repository {repository}",
        curl(config) or "# FP16 and BF16 have no JSON form: send binary tensors, as with tritonclient",
    ]
    if others := _no_models(place.repository):
        names = ", ".join(others[:_MOST_NAMES]) + (" and others" if len(others) > _MOST_NAMES else "")
        lines[1:1] = [
            f"note: a server of '{place.repository}' ends with an error, because these are no models: {names}. Keep "
            "models in a directory of their own, as --model-repository models does"
        ]
    return "\n".join(lines)


def _no_models(repository: Path) -> list[str]:
    """Return the directories that a server takes for models, and that are none."""
    try:
        found = Repository([repository]).scan()
    except EdgeServeError:  # the model is written; a server says why it cannot read the rest
        return []
    return [f"{name}/" for name, entry in found.items() if not is_model(entry.directory)]


def _parser() -> OptionParser:
    parser = OptionParser(
        "init",
        "Write the directory of a new model that works: its config.pbtxt, with comments that say what to change, and "
        "its version directory.",
        "Exit status: 0 written, 1 not written (and nothing is left), 2 wrong use.",
        usage="edge-serve init MODEL (--onnx FILE | --python | --ensemble A,B) [--model-repository DIR]",
    )
    parser.add_argument("model", metavar="MODEL", help="name of the new model")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--onnx", metavar="FILE", type=Path, help="copy this ONNX file; inputs, outputs and batch are taken from it"
    )
    kind.add_argument("--python", action="store_true", help="a model.py that answers, to be changed")
    kind.add_argument(
        "--ensemble", metavar="A,B", help="models of the repository in their order: outputs of A are inputs of B"
    )
    parser.add_argument(
        "--model-repository", metavar="DIR", type=Path, default=Path(os.curdir),
        help="directory of models to write into (the current one)",
    )  # fmt: skip
    return parser
