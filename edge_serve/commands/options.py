"""Parser of a command's options: one-line errors with exit status 2, and the nearest option for one that is unknown."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from edge_serve.commands.help import USAGE
from edge_serve.config.settings.kinds import shown
from edge_serve.config.settings.table import nearest
from edge_serve.messages.line import one_line

#: columns of a help text on a wide terminal
_WIDEST = 80


class OptionParser(argparse.ArgumentParser):
    """Parser for the options of one command; `--help` prints a text that fits a screen."""

    def __init__(self, command: str, description: str, epilog: str = "", usage: str | None = None) -> None:
        super().__init__(
            f"edge-serve {command}",
            usage=usage,
            description=_filled(description),
            epilog=_filled(epilog),
            allow_abbrev=False,
            formatter_class=_formatter,
        )
        self._command = command

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; a command line that cannot be used ends the program with `USAGE`."""
        options, unknown = self.parse_known_args(list(arguments))
        if unknown:
            self.error(self._about(next((one for one in unknown if one.startswith("-")), unknown[0])))
        return options

    def _about(self, argument: str) -> str:
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            return f"unexpected argument '{shown(argument)}'"
        close = nearest(flag, [name for name in self._option_string_actions if name.startswith("--")])
        return f"unrecognized option '{shown(flag)}'" + (f", did you mean '{close}'?" if close else "")

    def error(self, message: str) -> NoReturn:
        """End the program with one line on standard error."""
        print(f"edge-serve: {message}; see 'edge-serve {self._command} --help'", file=sys.stderr)
        raise SystemExit(USAGE)


def fail(text: str) -> int:
    """Print why a command was not done. Return its exit status."""
    lines = f"edge-serve: {text}".splitlines()
    print("\n".join(map(one_line, lines)), file=sys.stderr)  # it may quote a name from a file
    return 1


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option that takes seconds."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (value := float(text)) <= most:
                return value
        raise argparse.ArgumentTypeError(f"found '{shown(text)}', expected {least:g} to {most:g} seconds")

    return parse


def _filled(text: str) -> str:
    """Return `text` with each of its lines wrapped."""
    width = min(shutil.get_terminal_size().columns, _WIDEST) - 2
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=width)
