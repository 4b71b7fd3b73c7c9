"""`edge-serve [serve] ...`, `edge-serve check REPOSITORY ...`, `edge-serve doctor`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_serve import log
from edge_serve.config.programs import EDGE_SERVE, TRITONSERVER, Program, program_of
from edge_serve.config.server import ServerConfig, parse_argv, usage
from edge_serve.config.setting_kinds import REPOSITORY
from edge_serve.config.settings import BadSetting

_COMMANDS = """Usage:
  edge-serve --model-repository=<path> [options]    serve models (`edge-serve serve ...` is the same)
  edge-serve check <repository>...                  load every model without serving it; say what is wrong and where
  edge-serve check-config [options]                 would the service start as it is set up now? (before a restart)
  edge-serve status [--json]                        how the server on this device is (status --help says more)
  edge-serve top                                    the same, live
  edge-serve doctor                                 what this machine has, what is missing, how to get it
  edge-serve safe-mode [--leave] [<directory>]      which models a server that died again and again left out; load them
  edge-serve token <file> <role> [<name>]           add a bearer token to a --token-file, and print it

"""

#: exit status of what Ctrl-C has ended, as shells count
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that `sys.argv` names, or edge-serve with these arguments; its exit status."""
    try:
        if argv is None and program_of(sys.argv[0]) is TRITONSERVER:
            return _tritonserver(sys.argv[1:])
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in ("status", "top"):
        from edge_serve.status import command

        return command.status(arguments[1:]) if arguments[0] == "status" else command.top(arguments[1:])
    if "--help" in arguments or "-h" in arguments:
        print(_COMMANDS + usage().partition("\n\n")[2], end="")
        return 0
    match arguments:
        case ["check", *rest]:
            return _check(rest)
        case ["check-config", *rest]:
            from edge_serve import check_config

            return check_config.run(rest, os.environ)
        case ["doctor", *rest]:
            return _doctor(rest)
        case ["token", *rest]:
            return _token(rest)
        case ["safe-mode", *rest]:
            from edge_serve.systemd.command import safe_mode

            return safe_mode(rest, os.environ)
        case ["serve", *rest]:
            return _serve(rest)
    return _serve(arguments)


def _tritonserver(arguments: Sequence[str]) -> int:
    """`tritonserver`: serve with Triton's defaults. It has no other commands."""
    if "--help" in arguments or "-h" in arguments:
        print(usage(TRITONSERVER), end="")
        return 0
    return _serve(arguments, TRITONSERVER)


def _serve(arguments: Sequence[str], program: Program = EDGE_SERVE) -> int:
    try:
        config = parse_argv(arguments, os.environ, program)
    except BadSetting as error:
        print(f"{program.name}: {error}", file=sys.stderr)
        print(f"Try '{program.name} --help'.", file=sys.stderr)
        return 1
    try:
        control = _configure_log(config)
    except OSError as error:
        print(f"{program.name}: cannot write the log to '{config.log_file}': {error.strerror}", file=sys.stderr)
        return 1
    from edge_serve.server import serve  # the rest of the server is not needed to refuse a bad command line

    return serve(config, control)


def _configure_log(config: ServerConfig) -> log.LogControl:
    levels = log.LevelFilter(
        info=config.log_info, warning=config.log_warning, error=config.log_error, verbose=config.log_verbose
    )
    journal = None
    if "JOURNAL_STREAM" in os.environ and not config.given & {"log_file", "log_format"}:
        from edge_serve.journal.handler import find_journal

        journal = find_journal(os.environ)
    control = log.configure(config.log_format, levels, file=config.log_file, journal=journal)
    for note in config.notes:
        logging.getLogger(__name__).warning("%s", note)
    return control


def _check(arguments: Sequence[str]) -> int:
    from edge_serve import check
    from edge_serve.errors import EdgeServeError

    flag = "--disable-auto-complete-config"
    auto_complete = flag not in arguments
    roots = [argument for argument in arguments if argument != flag]
    if not roots or any(argument.startswith("-") for argument in arguments if argument != flag):
        print(f"edge-serve: expected edge-serve check [{flag}] <repository>...", file=sys.stderr)
        return 1
    log.configure("default", log.LevelFilter(info=False, warning=False, error=False))  # the report says it all
    try:
        return check.run([Path(REPOSITORY.parse(root)) for root in roots], auto_complete=auto_complete)
    except EdgeServeError as error:
        print(f"edge-serve: {error.message}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"edge-serve: {error}", file=sys.stderr)
        return 1


def _doctor(arguments: Sequence[str]) -> int:
    from edge_serve import doctor

    if arguments:
        print(f"edge-serve: doctor takes no arguments, found '{arguments[0]}'", file=sys.stderr)
        return 1
    text, good = doctor.report(doctor.examine())
    print(text)
    return 0 if good else 1


def _token(arguments: Sequence[str]) -> int:
    from edge_serve.access.roles import parse_role
    from edge_serve.access.tokens import new_token
    from edge_serve.errors import EdgeServeError

    if len(arguments) not in (2, 3):
        print("edge-serve: expected edge-serve token <file> <role> [<name>]", file=sys.stderr)
        return 1
    path, role, name = Path(arguments[0]), arguments[1], "".join(arguments[2:])
    try:
        print(new_token(path, parse_role(role), name))
    except EdgeServeError as error:
        print(f"edge-serve: {error.message}", file=sys.stderr)
    except ValueError as error:
        print(f"edge-serve: {error}", file=sys.stderr)
    except OSError as error:
        print(f"edge-serve: cannot write '{path}': {error.strerror}", file=sys.stderr)
    else:
        return 0
    return 1
