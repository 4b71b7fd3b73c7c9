"""The options of a build: the same words on the command line, in a manifest of `edge-ota`, and in a configuration."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen

#: input -> shape
Shapes = Mapping[str, tuple[int, ...]]
#: precisions that TensorRT up to 10 may use beside FP32, in its words (BuilderFlag)
PRECISIONS = ("FP16", "BF16", "INT8")
_SIDES = ("min", "opt", "max")
#: name of the accelerator in `optimization.execution_accelerators` (Triton's model_config.proto)
_ACCELERATOR = "tensorrt"
_MOST_DLA_CORES = 8
#: size of a dimension; TensorRT 8.6 has 32 bits for it
_LARGEST = (1 << 31) - 1


@frozen
class EngineOptions:
    """The options of a build.

    Attributes:
        precisions: out of `PRECISIONS`.
        shapes: for each profile `min`, `opt`, and `max`, as far as they are given; () = from the configuration.
        version_compatible: the plan runs on later versions of TensorRT, too.
        hardware_compatible: it runs on every GPU from compute capability 8.0.
        dla_core: the DLA core that it is built for; -1 = it is built for the GPU.
        level: effort from 0 to 5; -1 = TensorRT's default.
        workspace_bytes: the most device memory for one layer; 0 = a share of the free memory.
        tf32: from compute capability 8.0, FP32 products round their operands to 10 bits, TensorRT's default.
    """

    precisions: tuple[str, ...] = ()
    shapes: tuple[Mapping[str, Shapes], ...] = ()
    version_compatible: bool = False
    hardware_compatible: bool = False
    dla_core: int = -1
    level: int = -1
    workspace_bytes: int = 0
    tf32: bool = True


def add_precisions(parser: argparse.ArgumentParser) -> None:
    """Add the options of a build that choose precisions."""
    for name, text in (
        ("fp16", "FP16 kernels, too; so --bf16, --int8, --best (all)"),
        ("bf16", ""),
        ("int8", ""),
        ("best", ""),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text or argparse.SUPPRESS)
    parser.add_argument("--no-tf32", action="store_true", help="FP32 products with all bits of their operands")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the other options of a build."""
    for side in _SIDES:
        text = "x:4x3x224x224,y:4x8; so --min-shapes, --max-shapes" if side == "opt" else argparse.SUPPRESS
        parser.add_argument(f"--{side}-shapes", metavar="SHAPES", action="append", default=[], help=text)
    parser.add_argument("--version-compatible", action="store_true", help="for later versions of TensorRT, too")
    parser.add_argument("--hardware-compatible", action="store_true", help="for all GPUs from compute capability 8.0")
    parser.add_argument("--dla-core", metavar="N", type=number(0, _MOST_DLA_CORES), default=-1, help="for this DLA")
    parser.add_argument(
        "--optimization-level", metavar="N", type=number(0, 5), default=-1, help="0 builds fast, 5 runs fast"
    )
    parser.add_argument(
        "--workspace-mb",
        metavar="N",
        type=number(0, 1 << 20),
        default=0,
        help="memory for one layer (half of the free)",
    )


def options_of(found: argparse.Namespace) -> EngineOptions:
    """Return the options that a parser of `add_options` found, and of `add_precisions` if it has those.

    Raises:
        InvalidArgument: a shape cannot be read.
    """
    best = getattr(found, "best", False)
    precisions = tuple(name for name in PRECISIONS if best or getattr(found, name.lower(), False))
    sides = {side: [parse_shapes(text) for text in getattr(found, f"{side}_shapes")] for side in _SIDES}
    count = max(map(len, sides.values()))
    for side, given in sides.items():
        if given and len(given) != count:
            raise InvalidArgument(
                f"--{side}-shapes is given {len(given)} times and another one {count} times, expected one for each "
                "profile"
            )
    profiles = tuple({side: given[number] for side, given in sides.items() if given} for number in range(count))
    if best:
        precisions = ("BEST", *precisions)
    return EngineOptions(
        precisions,
        profiles,
        found.version_compatible,
        found.hardware_compatible,
        found.dla_core,
        found.optimization_level,
        found.workspace_mb << 20,
        not getattr(found, "no_tf32", False),
    )


def parse_options(text: str, where: str) -> EngineOptions:
    """Return the options in a text, written as on the command line.

    Args:
        where: names the text, for the message.

    Raises:
        InvalidArgument: an option is not known, or has a value that it cannot have.
    """
    parser = _TextParser(where)
    add_precisions(parser)
    add_options(parser)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"{where} is {text!r}: {error}") from error
    return options_of(parser.parse_args(words))


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Return input -> shape of `x:1x3x224x224,y:1x8`. The name may have colons.

    Raises:
        InvalidArgument: the text is another one.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, colon, dims = part.rpartition(":")
        numbers = dims.split("x")
        if not colon or not name or not all(number.isascii() and number.isdigit() for number in numbers):
            raise InvalidArgument(f"found the shape '{part}', expected INPUT:1x3x224x224 (several with , between them)")
        if name in found:
            raise InvalidArgument(f"input '{name}' has two shapes in '{text}', expected one")
        found[name] = tuple(map(int, numbers))
        if max(found[name]) > _LARGEST:
            raise InvalidArgument(f"found the shape '{part}', expected numbers up to {_LARGEST}")
    return found


def over(base: EngineOptions, given: EngineOptions) -> EngineOptions:
    """Return the options of `base` with those of `given` that are not the default in their place."""
    default = EngineOptions()
    changed = {
        one.name: value for one in fields(default) if (value := getattr(given, one.name)) != getattr(default, one.name)
    }
    return replace(base, **changed)


def with_accelerator(options: EngineOptions, config: Mapping[str, Any]) -> EngineOptions:
    """Return the options with those of `gpu_execution_accelerator { name: "tensorrt" }`, which options given go before.

    Raises:
        InvalidArgument: a parameter has a value that it cannot have.
    """
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    named = [one for one in accelerators.get("gpu_execution_accelerator") or () if one.get("name") == _ACCELERATOR]
    given = dict(named[0].get("parameters") or {}) if named else {}
    mode = str(given.get("precision_mode", "FP32"))
    if mode not in ("FP32", *PRECISIONS):
        raise InvalidArgument(f"precision_mode is '{mode}', expected FP32, {', '.join(PRECISIONS)}")
    workspace = str(given.get("max_workspace_size_bytes", "0"))
    if not workspace.isascii() or not workspace.isdigit():
        raise InvalidArgument(f"max_workspace_size_bytes is '{workspace}', expected a number of bytes")
    precisions = options.precisions or ((mode,) if mode != "FP32" else ())
    return replace(options, precisions=precisions, workspace_bytes=options.workspace_bytes or int(workspace))


class _TextParser(argparse.ArgumentParser):
    """Parser of options in a file, whose errors are exceptions."""

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._where = where

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"{self._where}: {message}; 'edge-serve build --help' lists the options of a build")


def number(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that takes a number in a range."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"found '{text}', expected {least} to {most}")

    return parse


def from_json(document: Mapping[str, Any]) -> EngineOptions:
    """Return the options of a document that `dataclasses.asdict` made."""
    shapes = tuple({side: _tuples(named) for side, named in profile.items()} for profile in document["shapes"])
    return EngineOptions(**{**document, "precisions": tuple(document["precisions"]), "shapes": shapes})


def _tuples(named: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in named.items()}
