"""The program `edge-serve`: finds the command, and serves models if no command is given."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

from edge_serve.commands import help as texts
from edge_serve.config.settings.programs import EDGE_SERVE, TRITONSERVER, Program, program_of
from edge_serve.config.settings.server import ServerConfig, parse_argv, usage
from edge_serve.config.settings.table import BadSetting
from edge_serve.observe.log import log

#: exit statuses of what Ctrl-C and a closed pipe have ended, as shells count
INTERRUPTED, BROKEN_PIPE = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that `sys.argv` names, or edge-serve with these arguments; its exit status."""
    try:
        if argv is None and program_of(sys.argv[0]) is TRITONSERVER:
            return _serve(sys.argv[1:], TRITONSERVER)
        status = _run(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout:  # None where it is closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # a reader that has read enough, as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the interpreter flushes at its end
        return BROKEN_PIPE
    return status


def _run(arguments: Sequence[str]) -> int:
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if word == "help":
        arguments = [*rest[:1], "--help"]
        word, rest = arguments[0], arguments[1:]
    if word in texts.COMMANDS:
        return _COMMANDS[word](rest)
    if word and not word.startswith("-"):
        return _refuse(texts.unknown_command(word), "--help")
    if "--version" in arguments or "-V" in arguments:
        print(texts.version())
        return 0
    if "--help" in arguments or "-h" in arguments:
        if "--all" in arguments:
            return _serve(["--help"])
        print(texts.overview(), end="")
        return 0
    return _serve(arguments)


def _serve(arguments: Sequence[str], program: Program = EDGE_SERVE) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(usage(program), end="")
        return 0
    try:
        config = parse_argv(arguments, os.environ, program)
    except BadSetting as error:
        if program is TRITONSERVER:
            print(f"{program.name}: {error}", file=sys.stderr)
            print(f"Try '{program.name} --help'.", file=sys.stderr)
            return 1  # as Triton's
        return _refuse(error.message, "serve --help" if error.show_usage else "--help")
    try:
        control = configure_log(config)
    except OSError as error:
        print(f"{program.name}: cannot write the log to '{config.log_file}': {error.strerror}", file=sys.stderr)
        return 1
    control.adopt("asyncio")
    from edge_serve.server import serve  # the rest of the server is not needed to refuse a bad command line

    try:
        return serve(config, control)
    except Exception:  # in the log, which has a time limit: standard error may be a pipe that takes nothing
        logging.getLogger(__name__).critical("the server ends because of a fault of its own", exc_info=True)
        return 1


def _refuse(message: str, hint: str) -> int:
    """Print why the command line cannot be used; the exit status."""
    print(f"edge-serve: {message}", file=sys.stderr)
    print(f"Try 'edge-serve {hint}'.", file=sys.stderr)
    return texts.USAGE


def configure_log(config: ServerConfig) -> log.LogControl:
    """Configure the log as the settings say, and log the notes on them."""
    levels = log.LevelFilter(
        info=config.log_info, warning=config.log_warning, error=config.log_error, verbose=config.log_verbose
    )
    journal = None
    if "JOURNAL_STREAM" in os.environ and not config.given & {"log_file", "log_format"}:
        from edge_serve.observe.log.handler import find_journal

        journal = find_journal(os.environ)
    control = log.configure(config.log_format, levels, file=config.log_file, journal=journal)
    for note in config.notes:
        logging.getLogger(__name__).warning("%s", note)
    return control


def _check(arguments: Sequence[str]) -> int:
    from edge_serve.commands import check

    with log.silenced():
        return check.run(arguments)


def _check_config(arguments: Sequence[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(texts.CHECK_CONFIG, end="")
        return 0
    from edge_serve.check import config as check_config

    return check_config.run(arguments, os.environ)


def _init(arguments: Sequence[str]) -> int:
    from edge_serve.init import command

    with log.silenced():
        return command.run(arguments)


def _status(arguments: Sequence[str]) -> int:
    from edge_serve.observe.status import command

    return command.status(arguments)


def _top(arguments: Sequence[str]) -> int:
    from edge_serve.observe.status import command

    return command.top(arguments)


def _doctor(arguments: Sequence[str]) -> int:
    from edge_serve.doctor import command

    return command.run(arguments, os.environ)


def _safe_mode(arguments: Sequence[str]) -> int:
    from edge_serve.supervision.command import safe_mode

    return safe_mode(arguments, os.environ)


def _token(arguments: Sequence[str]) -> int:
    from edge_serve.commands import token

    return token.run(arguments)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": _serve,
    "check": _check,
    "init": _init,
    "status": _status,
    "top": _top,
    "check-config": _check_config,
    "doctor": _doctor,
    "safe-mode": _safe_mode,
    "token": _token,
}
