"""`edge-serve pack list|install|remove`: the options of the command, and its report."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edge_serve.backends.packs import PACKS, install_command
from edge_serve.commands.options import OptionParser, fail
from edge_serve.config.settings.server import backend_directory
from edge_serve.errors import EdgeServeError
from edge_serve.files import path_of
from edge_serve.messages.line import one_line
from edge_serve.pack.install import PackWish, install, remove, source_of
from edge_serve.pack.listing import Listed, packs_in
from edge_serve.pack.versions import sweep

#: of the JSON document; raised when a member changes its meaning or goes
SCHEMA = 1


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = _parser()
    options = parser.parse(arguments)
    if options.action != "list" and not options.name:
        parser.error(f"pack {options.action} needs the name of a pack: {', '.join(PACKS)}")
    root = Path(options.backend_directory).absolute()
    said: list[str] = []
    failure, status = "", 0
    try:
        if root.exists() and not root.is_dir():
            failure = f"'{root}' is not a directory: name that of the packs with --backend-directory"
        elif options.action == "list":
            found = list(packs_in(root))
            said.append(_listing(root, found, as_json=options.json))
            status = 1 if any(one.fault for one in found) else 0
        else:
            said.append(_remove(options, root) if options.action == "remove" else _install(options, root))
            said += [
                f"{version} is in use by a server or another command: the next install or remove of the pack deletes it"
                for version in sweep(options.name, root)
            ]
    except EdgeServeError as error:
        failure = error.message
    except OSError as error:
        advice = (
            "; try it as root, or name another directory with --backend-directory"
            if error.errno == errno.EACCES
            else ""
        )
        failure = f"'{path_of(error) or root}': {error.strerror or error}{advice}"
    for text in said:
        print(text)
    return fail(failure) if failure else status


def _remove(options: argparse.Namespace, root: Path) -> str:
    remove(options.name, root)
    return f"removed {root / options.name}"


def _install(options: argparse.Namespace, root: Path) -> str:
    source = source_of(options.name, options.source)
    wish = PackWish(options.name, source, options.python, options.wheels, options.gpu)
    old = os.umask(0o022)  # the service's user reads it, whatever umask the caller has
    try:
        place = install(wish, root)
    finally:
        os.umask(old)
    return f"installed {place}; models that are loaded from now on use it"


def _listing(root: Path, found: Sequence[Listed], *, as_json: bool) -> str:
    if as_json:
        packs = [asdict(one) for one in found]
        return json.dumps({"schema": SCHEMA, "backend_directory": str(root), "packs": packs}, indent=2)
    none = f"no packs in {root}: {install_command(PACKS[0])} installs one of {', '.join(PACKS)}"
    return "\n".join(map(line, found)) or none


def line(one: Listed) -> str:
    """Return a pack as one line."""
    if one.fault:
        return one_line(f"!!  {one.name:<12} {one.fault}")
    python = f"Python {one.python} of its own" if one.python else "the server's Python"
    kind = ", python-based" if one.is_python_based else ""
    return one_line(f"ok  {one.name:<12} {one.version or 'no version'}, {python}{kind}")


def _parser() -> OptionParser:
    parser = OptionParser(
        "pack",
        "List, install, or remove backend packs: backends for models of OpenVINO, PyTorch, and others, each with an "
        "environment of its own (docs/packs.md).",
        "Exit status: 0 done, 1 not done, or a listed pack is broken, 2 wrong use.",
        usage="edge-serve pack list | install NAME | remove NAME [option...]",
    )
    parser.add_argument(
        "action", metavar="list|install|remove", choices=("list", "install", "remove"), help="what to do"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="of the pack: " + ", ".join(PACKS))
    parser.add_argument(
        "--backend-directory", metavar="DIR", default=backend_directory(os.environ),
        help="directory of the packs, as the server's option (default: $EDGE_SERVE_BACKEND_DIRECTORY or the server's "
        "default)",
    )  # fmt: skip
    parser.add_argument("--from", metavar="DIR", dest="source", type=Path, help="directory with the files of the pack")
    parser.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="interpreter of the pack (default: that of edge-serve)"
    )
    parser.add_argument("--wheels", metavar="DIR", type=Path, help="take wheels from this directory, without a network")
    parser.add_argument(
        "--gpu", action="store_true", help="with the libraries for NVIDIA GPUs: CUDA 13, several GB (pytorch)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document (list)")
    return parser
