"""`edge-serve check`: the options of the command, its report for people or programs, and the check as another user."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from edge_serve import __version__
from edge_serve.backends.packs import Packs
from edge_serve.check import command as check
from edge_serve.commands.options import OptionParser, fail, seconds
from edge_serve.config.settings.kinds import REPOSITORY, SettingKind
from edge_serve.config.settings.server import backend_directory, backend_settings
from edge_serve.config.settings.server_values import BACKEND_SETTING, BackendSetting, unread_backend_settings
from edge_serve.config.settings.table import BadSetting
from edge_serve.engines.settings import without_cache
from edge_serve.errors import EdgeServeError
from edge_serve.observe.log import log
from edge_serve.workers.launch.interpreter import own_interpreter

GOOD, BAD = 0, 1
#: of the JSON document; raised when a member changes its meaning or goes
SCHEMA = 1
#: how long a model may take to answer, seconds
_INFER_SECONDS = 30.0


@log.silenced()
def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = _parser()
    options = parser.parse(arguments)
    if options.record_golden and not options.model:
        parser.error("--record-golden writes into the directories of models: name each with --model NAME")
    try:
        options.backend_config = options.backend_config or without_cache(backend_settings(os.environ))
    except BadSetting as error:
        parser.error(error.message)
    if options.as_user:
        return _run_as(options.as_user, options, parser)
    for note in unread_backend_settings(options.backend_config):
        print(f"edge-serve: {note}", file=sys.stderr)
    wanted = check.CheckOptions(
        not options.disable_auto_complete_config,
        tuple(dict.fromkeys(options.model)),
        options.infer_timeout if options.infer else 0.0,
        options.load_timeout,
        options.record_golden,
        Packs(Path(options.backend_directory).absolute()),
        tuple(options.backend_config),
    )
    try:
        return asyncio.run(_check(options.repository, wanted, as_json=options.json))
    except EdgeServeError as error:
        if options.json:
            print(json.dumps(_document(options.repository, [], error.message), indent=2))
        else:
            fail(error.message)
        return BAD


async def _check(roots: Sequence[Path], wanted: check.CheckOptions, *, as_json: bool) -> int:
    verdicts = []
    async for verdict in check.check_repository(roots, wanted):
        verdicts.append(verdict)
        if not as_json:
            print(check.report(verdict), flush=True)
    good = sum(verdict.good for verdict in verdicts)
    if as_json:
        print(json.dumps(_document(roots, verdicts), indent=2))
    else:
        word = "answer as their configuration says" if wanted.infer_seconds else "can be served"
        print(f"\n{good} of {len(verdicts)} models {word}")
    return GOOD if good == len(verdicts) else BAD


def _document(roots: Sequence[Path], verdicts: Sequence[check.ModelVerdict], error: str = "") -> dict[str, Any]:
    """Return the JSON document (docs/commands.md)."""
    return {
        "schema": SCHEMA,
        "edge_serve": __version__,
        "repositories": [str(root) for root in roots],
        "ok": not error and all(verdict.good for verdict in verdicts),
        "error": error,
        "models": [{"ok": verdict.good, **asdict(verdict)} for verdict in verdicts],
    }


def _run_as(name: str, options: argparse.Namespace, parser: OptionParser) -> int:
    """Run the same check in a child process that belongs to the user `name`."""
    if os.geteuid() != 0:
        parser.error(f"--as {name}: only root may act as another user; use sudo")
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        parser.error(f"--as {name}: there is no such user")
    interpreter = own_interpreter()
    command = [*interpreter.command, "edge_serve", "check", *_arguments(options)]
    variables = {**interpreter.variables, "HOME": user.pw_dir, "USER": name, "LOGNAME": name}
    groups = os.getgrouplist(name, user.pw_gid)
    try:
        done = subprocess.run(
            command, env=variables, user=user.pw_uid, group=user.pw_gid, extra_groups=groups, cwd="/", check=False
        )
    except OSError as error:
        text = f"cannot run {interpreter.command[0]} as user '{name}': {error.strerror}; is it in a private directory?"
        return fail(text)
    return done.returncode if done.returncode >= 0 else BAD


def _arguments(options: argparse.Namespace) -> list[str]:
    """Return the options for the child process, with whole paths: it starts in another directory."""
    arguments = [
        flag for flag in ("disable_auto_complete_config", "infer", "json", "record_golden") if getattr(options, flag)
    ]
    return [
        *(f"--{flag.replace('_', '-')}" for flag in arguments),
        f"--infer-timeout={options.infer_timeout}",
        f"--load-timeout={options.load_timeout}",
        f"--backend-directory={os.path.abspath(options.backend_directory)}",
        *(f"--backend-config={_with_whole_paths(one).text}" for one in options.backend_config),
        *(f"--model={name}" for name in options.model),
        "--",
        *(os.path.abspath(path) for path in options.repository),
    ]


def _with_whole_paths(setting: BackendSetting) -> BackendSetting:
    """Return the setting with whole paths of plug-ins; a name without a slash is looked for as `dlopen` does."""
    if setting.key != "plugins":
        return setting
    paths = [path.strip() for path in setting.value.split(";")]
    return replace(setting, value=";".join(os.path.abspath(path) if "/" in path else path for path in paths))


def _parser() -> OptionParser:
    parser = OptionParser(
        "check",
        "Load every model of a repository without serving it, and say what is wrong and which line to change.",
        "A model with a golden test (docs/golden_tests.md) must give the recorded answers and keep its budgets.\n"
        f"Exit status: {GOOD} every model is good, {BAD} one is not, or a repository cannot be read, 2 wrong use.",
        usage="edge-serve check [option...] REPOSITORY...",
    )
    parser.add_argument("repository", metavar="REPOSITORY", nargs="+", type=_repository, help="directory of models")
    parser.add_argument("--model", metavar="NAME", action="append", default=[], help="check this model only (repeat)")
    parser.add_argument(
        "--infer", action="store_true",
        help="send each model a request, the first sample of its model_warmup or zeros, and compare the answer with "
        "its configuration",
    )  # fmt: skip
    parser.add_argument(
        "--infer-timeout", metavar="S", type=seconds(0.1, 86_400.0), default=_INFER_SECONDS,
        help=f"seconds that a model may take to answer ({_INFER_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--load-timeout", metavar="S", type=seconds(0.1, 86_400.0), default=check.CheckOptions().load_seconds,
        help=f"seconds that a model may take to load ({check.CheckOptions().load_seconds:g})",
    )  # fmt: skip
    parser.add_argument(
        "--record-golden", action="store_true",
        help="write what each --model answers as its golden test",
    )  # fmt: skip
    parser.add_argument(
        "--backend-directory", metavar="DIR", default=backend_directory(os.environ),
        help="directory of backend packs, as the server's option",
    )  # fmt: skip
    parser.add_argument(
        "--backend-config", metavar="SETTING", action="append", type=partial(_parsed, BACKEND_SETTING), default=[],
        help="setting of backends, as the server's option (repeat); without it, EDGE_SERVE_BACKEND_CONFIG",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--as", metavar="USER", dest="as_user", default="",
        help="check as this user, such as edge-serve (root only)",
    )  # fmt: skip
    parser.add_argument(
        "--disable-auto-complete-config", action="store_true",
        help="demand complete config.pbtxt files, as the server does with this option",
    )  # fmt: skip
    return parser


def _repository(text: str) -> Path:
    return Path(_parsed(REPOSITORY, text))


def _parsed(kind: SettingKind, text: str) -> Any:
    try:
        return kind.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
