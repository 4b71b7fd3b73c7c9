"""The program `edge-serve`: finds the command, and serves models if no command is given."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence

from edge_serve.commands import help as texts
from edge_serve.config.settings.programs import EDGE_SERVE, TRITONSERVER, Program, program_of
from edge_serve.config.settings.server import ServerConfig, parse_argv, usage
from edge_serve.config.settings.table import BadSetting
from edge_serve.messages.settings import LogSettings
from edge_serve.observe.log import log

#: command -> module and function, which is imported when it is needed
_COMMANDS = {
    "check": "edge_serve.commands.check:run",
    "build": "edge_serve.commands.build:run",
    "convert": "edge_serve.convert.command:run",
    "init": "edge_serve.init.command:run",
    "pack": "edge_serve.pack.command:run",
    "status": "edge_serve.observe.status.command:status",
    "top": "edge_serve.observe.status.command:top",
    "check-config": "edge_serve.check.config:run",
    "doctor": "edge_serve.doctor.command:run",
    "safe-mode": "edge_serve.supervision.command:safe_mode",
    "token": "edge_serve.commands.token:run",
}
#: exit statuses of what Ctrl-C and a closed pipe have ended, as shells count
INTERRUPTED, BROKEN_PIPE = 130, 141
#: exit status of a command whose output could not be written: EX_IOERR of sysexits(3)
OUTPUT_LOST = 74
#: errors of write(2) that are no fault of the program
_REFUSED_WRITES = (errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that `sys.argv` names, or edge-serve with these arguments; its exit status."""
    _prepare_output()
    try:
        if argv is None and program_of(sys.argv[0]) is TRITONSERVER:
            return _serve(sys.argv[1:], TRITONSERVER)
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # a reader that has read enough, as `| head`
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _REFUSED_WRITES or error.filename is not None:
            raise
        _discard_output()
        print(f"edge-serve: cannot write the output: {error.strerror}", file=sys.stderr)
        return OUTPUT_LOST
    return status


def _prepare_output() -> None:
    """Open the null device in place of standard input and output that are closed, before a socket takes their place.

    Standard output escapes characters that its encoding lacks.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  # until the program ends
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the program ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that it cannot encode, as standard error does


def _discard_output() -> None:
    """Discard what the interpreter writes to standard output at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    word, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if word == "help":
        arguments = [*rest[:1], "--help"]
        word, rest = arguments[0], arguments[1:]
    if word == "serve":
        return _serve(rest)
    if word in _COMMANDS:
        module, _, function = _COMMANDS[word].partition(":")
        run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return run(rest)
    if word and word != "version" and not word.startswith("-"):
        return _refuse(texts.unknown_command(word), "--help")
    if word == "version" or list(arguments) == ["-v"] or "--version" in arguments or "-V" in arguments:
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
    # NumPy's threads poll for work after each product and after the import, 30 ms each; now 0.4 ms, here and in workers
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    gc.disable()  # a tenth of the imports' time: collections find nothing, because modules stay
    from edge_serve.first_workers import start_first_workers

    first = start_first_workers(config)  # before the imports of the log and the server, which take as long as theirs
    try:
        control = configure_log(config)
    except OSError as error:
        print(f"{program.name}: cannot write the log to '{config.log_file}': {error.strerror}", file=sys.stderr)
        return 1
    control.adopt("asyncio")
    from edge_serve.server import serve  # the rest of the server is not needed to refuse a bad command line

    gc.enable()
    try:
        return serve(config, control, first)
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
    settings = LogSettings(
        config.log_file, config.log_info, config.log_warning, config.log_error, config.log_verbose, config.log_format
    )
    journal = None
    if "JOURNAL_STREAM" in os.environ and not config.given & {"log_file", "log_format"}:
        from edge_serve.observe.log.journal import find_journal

        journal = find_journal(os.environ)
    control = log.configure(settings, journal=journal)
    for note in config.notes:
        logging.getLogger(__name__).warning("%s", note)
    return control
