"""Reading settings from argv and environment by a table, and printing the table as `--help`.

Triton's syntax: `--name=value` or `--name value`; `--name` alone only for flags. argv goes before the environment
variable EDGE_SERVE_<NAME>, and that before the default. An unknown option is an error, as in Triton. An unknown
variable is a warning, because an older program that reads a newer configuration should serve.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from edge_serve.config.settings.kinds import SettingKind, shown
from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen, slotted

#: between the values of a repeatable setting in its environment variable
SEPARATOR = ";"
_WIDTH = 100
_PREFIX = "EDGE_SERVE_"
_INTEGER = re.compile(r"[+-]?[0-9]+")
#: characters that a value may have: what the kernel takes as one argument (MAX_ARG_STRLEN)
_LONGEST = 128 * 1024
#: unknown variables that are named
_MOST_UNKNOWN = 20
#: variables with that prefix that are no settings (check_config.py)
_NO_SETTINGS = ("CHECK_MADE",)
#: parameters of config.pbtxt that no setting is named like
_PARAMETERS = ("MEMORY_MAX", "WORKER")


class BadSetting(InvalidArgument):
    """argv or the environment cannot be used.

    Attributes:
        show_usage: the reader needs the list of options rather than a line.
    """

    def __init__(self, message: str, *, show_usage: bool = False) -> None:
        super().__init__(message)
        self.show_usage = show_usage


@frozen
class Setting:
    """One setting, as the table has it; its name and default are those of the field that it annotates.

    Attributes:
        many: makes one value from all that were given; None = the setting is given once (a later one wins).
        ignored: why it is accepted without effect; "" = it has one.
        door: the setting that, when it is false, leaves this one without effect: an integer out of range is then a
            warning, as in Triton.
    """

    group: str
    kind: SettingKind
    help: str
    many: Callable[[Sequence[Any]], Any] | None = None
    ignored: str = ""
    door: str = ""


@frozen
class Alias:
    """Another spelling of a setting.

    Attributes:
        form: the value of `name` that stands for this value.
        deprecated: say so when it is used.
        exclusive: the setting's own name must not stand beside it.
    """

    name: str
    form: str = "{}"
    deprecated: bool = True
    exclusive: bool = False


Table = Mapping[str, Setting]


@slotted
class FoundSetting:
    """The settings found: raw values by setting, and the origin of each for messages."""

    values: dict[str, list[str]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def flag_of(name: str) -> str:
    """Return the flag of a setting: `--http-port` for `http_port`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the variable of a setting: `EDGE_SERVE_HTTP_PORT` for `http_port`."""
    return _PREFIX + name.upper()


def read_settings(
    table: Table, aliases: Mapping[str, Alias], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the given settings, and lines for the log about deprecated and ignored ones.

    Args:
        argv: without the program's name.

    Raises:
        BadSetting: an unknown option, or a value that the setting cannot have.
    """
    found = _from_argv(table, aliases, argv)
    for name, setting in table.items():
        text = environ.get(variable_of(name))
        if name not in found.values and text is not None:
            found.values[name] = [part for part in text.split(SEPARATOR) if part] if setting.many else [text]
            found.origins[name] = f'environment variable "{variable_of(name)}"'
    values: dict[str, Any] = {}
    # settings that open doors come first
    for name, raw in sorted(found.values.items(), key=lambda one: bool(table[one[0]].door)):
        door = table[name].door
        try:
            values[name] = _value(table[name], raw, found.origins[name])
        except BadSetting as error:
            if not door or values.get(door, True) or not all(_INTEGER.fullmatch(text) for text in raw):
                raise
            found.notes.append(f"{error.message}; it has no effect, because {flag_of(door)}=false")
    for name in values:
        if table[name].ignored and values[name] is not False:  # nothing is lost by turning off what is not there
            found.notes.append(f"{flag_of(name)} is accepted and ignored: {table[name].ignored}")
    return values, found.notes + unknown_variables(table, environ)


def unknown_variables(table: Table, environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that looks like a setting and is none."""
    known = {name.upper() for name in table}
    found = [name.removeprefix(_PREFIX) for name in sorted(environ) if name.startswith(_PREFIX)]
    unknown = [name for name in found if name not in known and name not in _NO_SETTINGS]
    notes = [_unknown_variable(name, known) for name in unknown[:_MOST_UNKNOWN]]
    if len(unknown) > _MOST_UNKNOWN:
        notes.append(f"{len(unknown) - _MOST_UNKNOWN} more environment variables {_PREFIX}* are unknown")
    return notes


def _unknown_variable(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    advice = f"did you mean {_PREFIX}{close}?" if close else "correct or remove it"
    if name in _PARAMETERS:
        advice = "it is a parameter of a model's config.pbtxt"
    return f"environment variable {_PREFIX}{shown(name)} is unknown and has no effect: {advice}"


def nearest(found: str, known: Iterable[str]) -> str:
    """Return the known name that is most like the one that was found; "" when none is."""
    import difflib  # only mistakes need it

    return next(iter(difflib.get_close_matches(found[:100], list(known), n=1)), "")


def _from_argv(table: Table, aliases: Mapping[str, Alias], argv: Sequence[str]) -> FoundSetting:
    found = FoundSetting()
    aliased: dict[str, list[str]] = {}
    arguments = iter(argv)
    for argument in arguments:
        flag, name, text = _split(argument, table, aliases)
        alias = aliases.get(flag)
        kind = table[name].kind
        if text is None and kind.bare and alias is None:
            text = "true"
        elif text is None and (text := next(arguments, None)) is None:
            raise BadSetting(f"option '{flag}' requires an argument", show_usage=True)
        found.origins[name] = f'option "{flag}"'
        if alias is None:
            found.values.setdefault(name, []).append(text)
            continue
        target = aliased if alias.deprecated else found.values
        target.setdefault(name, []).append(alias.form.format(text))
        if alias.deprecated:
            found.notes.append(f"{flag} is deprecated, use {flag_of(name)}={shown(alias.form.format(text))}")
    # a setting's own name wins over its deprecated spellings, wherever they stand
    for name, early in aliased.items():
        exclusive = [flag for flag, alias in aliases.items() if alias.name == name and alias.exclusive]
        if exclusive and name in found.values:
            both = f"{exclusive[0]} and {flag_of(name)}"
            raise BadSetting(f"Incompatible flags {both} both provided. Please provide one or the other.")
        found.values[name] = early + found.values.get(name, [])
    return found


def _split(argument: str, table: Table, aliases: Mapping[str, Alias]) -> tuple[str, str, str | None]:
    """Return the whole flag, the setting's name, and the value if it is part of the argument."""
    flag, equals, text = argument.partition("=")
    flag = _whole(flag, table, aliases)
    if not flag.startswith("--") or flag == "--":
        is_directory = "model_repository" in table and os.path.isdir(argument)
        hint = f"; it is a directory: did you mean '--model-repository={shown(argument)}'?" if is_directory else ""
        raise BadSetting(f"Unexpected argument: {shown(argument)}{hint}", show_usage=True)
    name = aliases[flag].name if flag in aliases else flag[2:].replace("-", "_")
    if name not in table or "_" in flag:
        close = nearest(flag, map(flag_of, table))
        hint = f", did you mean '{close}'?" if close else ""
        raise BadSetting(f"unrecognized option '{shown(flag)}'{hint}", show_usage=True)
    return flag, name, text if equals else None


def _whole(flag: str, table: Table, aliases: Mapping[str, Alias]) -> str:
    """Return the only option that begins with `flag`, as Triton's getopt_long does; else `flag` itself."""
    known = [*map(flag_of, table), *aliases]
    begun = [one for one in known if one.startswith(flag)]
    return begun[0] if len(begun) == 1 and flag not in known and len(flag) > len("--") else flag


def _value(setting: Setting, raw: Sequence[str], origin: str) -> Any:
    try:
        for text in raw:
            if len(text) > _LONGEST:
                raise ValueError(f"found '{shown(text)}', expected at most {_LONGEST} characters")
        parsed = [setting.kind.parse(text) for text in raw]
        return setting.many(parsed) if setting.many else parsed[-1]
    except ValueError as error:
        raise BadSetting(f"Bad {origin}: {error}") from error


def help_text(table: Table, defaults: Mapping[str, str]) -> str:
    """Describe all settings by group, in at most 100 columns.

    Args:
        defaults: as they are to be printed, by name.
    """
    lines: list[str] = []
    for group, names in by_group(table).items():
        lines += ["", f"{group}:"]
        for name in names:
            setting = table[name]
            lines.append(f"  {flag_of(name)}" + (f" <{setting.kind.metavar}>" if setting.kind.metavar else ""))
            text = describe(setting, defaults[name])
            lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines[1:]) + "\n"


def describe(setting: Setting, default: str) -> str:
    """Describe a setting in sentences: its meaning, whether it repeats, and its default or why it is ignored."""
    parts = [setting.help]
    if setting.many:
        parts.append("May be given several times.")
    if setting.ignored:
        parts.append(f"Accepted and ignored: {setting.ignored}.")
    elif default:
        parts.append(f"Default: {default}.")
    return " ".join(parts)


def by_group(table: Table) -> dict[str, list[str]]:
    """Return the names of the settings by group, both in the table's order."""
    groups: dict[str, list[str]] = {}
    for name, setting in table.items():
        groups.setdefault(setting.group, []).append(name)
    return groups
