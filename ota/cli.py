"""`edge-ota`: parses the command line, runs a command, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ota.commands import COMMANDS, OF_UNITS
from ota.errors import OtaError, UsageError
from ota.files import to_store_error
from ota.settings import FILE, PREFIX, AgentSettings, read_settings
from ota.store.directories import become_owner

INTERRUPTED = 130
#: as in edge-ota.service: the group of edge-serve reads releases and the status, also those of a root with umask 077
_UMASK = 0o027
#: commands that stay root: the publisher's, and the one that must not trust files of the agent's user
_AS_CALLER = ("publish", "verify-system")
EXIT_STATUS = (
    "0 done, or the change waits for signatures, 1 failed, 2 wrong use, 3 the repository did not deliver, "
    "4 not trusted, 5 disk, 6 this device cannot run the release, 7 the release failed its trial, "
    "8 edge-serve did not do its part, 9 another edge-ota is at work, "
    "10 the gate does not allow the step yet, 11 the gate has halted the rollout"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    try:
        arguments = build_parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
        return _run(arguments)
    except OtaError as error:
        print(f"edge-ota: {error.message}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                sys.stdout.close()
            return 0
        failure = to_store_error(error, Path(error.filename or "edge-ota"))
        print(f"edge-ota: {failure.message}", file=sys.stderr)
        return failure.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    found = {one.name: getattr(arguments, f"set_{one.name}", None) for one in fields(AgentSettings)}
    flags = {name: text for name, text in found.items() if text is not None}
    if arguments.command == "verify-system":  # the agent's user may own the settings file
        settings = read_settings(flags, {}, Path(os.devnull))
    else:
        warn = _warn if arguments.command == "boot" else None  # it must check links with half of the settings, too
        settings = read_settings(flags, file=Path(arguments.config) if arguments.config else None, warn=warn)
    if arguments.command not in _AS_CALLER:
        os.umask(_UMASK)
        become_owner(settings.state_dir)
    status: int = _module(arguments.command).run(arguments, settings)
    return status


def _warn(text: str) -> None:
    print(f"edge-ota: {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Reports errors on one line, with the nearest command or option and the help page of the command."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Return the options, and no others: an unknown one is refused by the command that it was given to.

        Raises:
            UsageError: the command line cannot be used.
        """
        self._given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            first = next((one for one in unknown if one.startswith("-")), unknown[0])
            self.error(self._unknown_option(first) if first.startswith("-") else f"unexpected argument '{first}'")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = [name for name in action.choices if not name.startswith(OF_UNITS)]
            self.error(f"unknown command '{value}'{nearest(value, known)}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`, where argparse ends the program. An unknown option comes first: the other errors, such as
        a missing argument, may be due to it."""
        own = takewhile(lambda word: word.startswith("--"), self._given) if self._commands() else self._given
        for word in takewhile(lambda word: word != "--", own):
            flag = word.partition("=")[0]
            if word.startswith("--") and not any(known.startswith(flag) for known in self._option_string_actions):
                message = self._unknown_option(word)
                break
        raise UsageError(f"{message} (see '{self.prog} --help')")

    def _unknown_option(self, word: str) -> str:
        flag = word.partition("=")[0]
        if any(flag in command._option_string_actions for command in self._commands()):
            return f"unknown option '{flag}'; options follow the command"
        return f"unknown option '{flag}'{nearest(flag, list(self._option_string_actions))}"

    def _commands(self) -> list[argparse.ArgumentParser]:
        """Return the parsers of the commands; none for a parser that is one itself."""
        found = (one for one in self._actions if isinstance(one, argparse._SubParsersAction))
        return [parser for one in found for parser in one.choices.values()]


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser. Only the module of the command that `argv` names is imported, if it names one."""
    named = argv[0] if argv and argv[0] in COMMANDS else ""
    shared = _Parser(add_help=False)
    shared.add_argument(
        "--config", metavar="FILE", default="", help=f"the settings file (default: {PREFIX}CONFIG, else {FILE})"
    )
    group = shared.add_argument_group("settings (each is also a line of the settings file, in capitals)")
    for one in fields(AgentSettings):
        group.add_argument(f"--{one.name.replace('_', '-')}", dest=f"set_{one.name}", help=argparse.SUPPRESS)
    parser = _Parser(
        prog="edge-ota",
        description="Pull signed releases of models, try them, and serve them.",
        epilog=f"exit status: {EXIT_STATUS}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name in (named,) if named else COMMANDS:
        module = _module(name)
        text = module.HELP if isinstance(module.HELP, str) else module.HELP[name]
        shown: dict[str, Any] = {} if name.startswith(OF_UNITS) else {"help": text}  # --help lists those that have one
        command = commands.add_parser(name, parents=[shared], description=text, allow_abbrev=False, **shown)
        module.add_arguments(command)
    commands.required = True
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"ota.commands.{COMMANDS[name]}")


def nearest(found: str, known: Sequence[str]) -> str:
    """Return `; did you mean X?`, or ""."""
    close = difflib.get_close_matches(found, known, 1)
    return f"; did you mean '{close[0]}'?" if close else ""
