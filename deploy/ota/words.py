"""The command line of edge-ota as a tree, made from its argparse parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from ota.cli import build_parser
from ota.commands import OF_UNITS


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `words` are those after `edge-ota`; `options` are (flags and value, help)."""

    words: tuple[str, ...]
    text: str
    arguments: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    subcommands: tuple[str, ...]


def commands() -> list[Command]:
    """Return all commands, in the order of `--help`, without those that units run."""
    found = list(_commands(build_parser(), (), ""))
    return [one for one in found if not one.words or not one.words[0].startswith(OF_UNITS)]


def _commands(parser: argparse.ArgumentParser, words: tuple[str, ...], text: str) -> Iterator[Command]:
    inner: dict[str, tuple[argparse.ArgumentParser, str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {one.dest: one.help or "" for one in action._choices_actions}
            inner = {name: (one, texts.get(name, "")) for name, one in action.choices.items()}
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = tuple((_head(one), one.help or "") for one in shown if one.option_strings and one.dest != "help")
    arguments = tuple(_argument(one) for one in shown if not one.option_strings and not one.choices)
    names = tuple(name for name in inner if not name.startswith(OF_UNITS))
    yield Command(words, text, arguments, options, names)
    for name, (one, help_text) in inner.items():
        yield from _commands(one, (*words, name), help_text)


def _head(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(action.option_strings) + value


def _argument(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest.upper())
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)
