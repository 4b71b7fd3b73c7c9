"""Reading settings from argv and environment by a table, and printing the table as `--help`.

Triton's syntax: `--name=value` or `--name value`; `--name` alone only for flags. argv goes before the environment
variable EDGE_SERVE_<NAME>, and that before the default.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_serve.config.setting_kinds import Kind
from edge_serve.errors import InvalidArgument

#: between the values of a repeatable setting in its environment variable
SEPARATOR = ";"
_WIDTH = 100


class BadSetting(InvalidArgument):
    """argv or the environment cannot be used.

    Attributes:
        show_usage: the reader needs the list of options rather than a line.
    """

    def __init__(self, message: str, *, show_usage: bool = False) -> None:
        super().__init__(message)
        self.show_usage = show_usage


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as the table has it; its name and default are those of the field that it annotates.

    Attributes:
        many: makes one value from all that were given; None = the setting is given once (a later one wins).
        ignored: why it is accepted without effect; "" = it has one.
    """

    group: str
    kind: Kind
    help: str
    many: Callable[[Sequence[Any]], Any] | None = None
    ignored: str = ""


@dataclass(frozen=True, slots=True)
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


@dataclass(slots=True)
class Found:
    """What was given: raw values by setting, and where each came from for messages."""

    values: dict[str, list[str]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def flag_of(name: str) -> str:
    """`http_port` -> `--http-port`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """`http_port` -> `EDGE_SERVE_HTTP_PORT`."""
    return "EDGE_SERVE_" + name.upper()


def read_settings(
    table: Table, aliases: Mapping[str, Alias], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Values of the settings that were given, and lines for the log about those that are deprecated or ignored.

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
    values = {name: _value(table[name], raw, found.origins[name]) for name, raw in found.values.items()}
    for name in values:
        if table[name].ignored:
            found.notes.append(f"{flag_of(name)} is accepted and ignored: {table[name].ignored}")
    return values, found.notes


def _from_argv(table: Table, aliases: Mapping[str, Alias], argv: Sequence[str]) -> Found:
    found = Found()
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
            found.notes.append(f"{flag} is deprecated, use {flag_of(name)}={alias.form.format(text)}")
    # a setting's own name wins over its deprecated spellings, wherever they stand
    for name, early in aliased.items():
        exclusive = [flag for flag, alias in aliases.items() if alias.name == name and alias.exclusive]
        if exclusive and name in found.values:
            both = f"{exclusive[0]} and {flag_of(name)}"
            raise BadSetting(f"Incompatible flags {both} both provided. Please provide one or the other.")
        found.values[name] = early + found.values.get(name, [])
    return found


def _split(argument: str, table: Table, aliases: Mapping[str, Alias]) -> tuple[str, str, str | None]:
    """The flag, written out, the setting's name, and the value if it is part of the argument."""
    flag, equals, text = argument.partition("=")
    flag = _whole(flag, table, aliases)
    if not flag.startswith("--") or flag == "--":
        raise BadSetting(f"Unexpected argument: {argument}", show_usage=True)
    name = aliases[flag].name if flag in aliases else flag[2:].replace("-", "_")
    if name not in table or "_" in flag:
        import difflib  # only mistakes need it

        known = [flag_of(known) for known in table]
        close = difflib.get_close_matches(flag, known, n=1)
        hint = f", did you mean '{close[0]}'?" if close else ""
        raise BadSetting(f"unrecognized option '{flag}'{hint}", show_usage=True)
    return flag, name, text if equals else None


def _whole(flag: str, table: Table, aliases: Mapping[str, Alias]) -> str:
    """The only option that begins with `flag`, as getopt_long of Triton takes it; else `flag` itself."""
    known = [*map(flag_of, table), *aliases]
    begun = [one for one in known if one.startswith(flag)]
    return begun[0] if len(begun) == 1 and flag not in known and len(flag) > len("--") else flag


def _value(setting: Setting, raw: Sequence[str], origin: str) -> Any:
    try:
        parsed = [setting.kind.parse(text) for text in raw]
        return setting.many(parsed) if setting.many else parsed[-1]
    except ValueError as error:
        raise BadSetting(f"Bad {origin}: {error}") from error


def help_text(table: Table, defaults: Mapping[str, str]) -> str:
    """All settings by group, at most 100 columns wide.

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
    """Meaning, repeatability, default and standing of a setting, in sentences."""
    parts = [setting.help]
    if setting.many:
        parts.append("May be given several times.")
    if setting.ignored:
        parts.append(f"Accepted and ignored: {setting.ignored}.")
    elif default:
        parts.append(f"Default: {default}.")
    return " ".join(parts)


def by_group(table: Table) -> dict[str, list[str]]:
    """Names of the settings by group, both in the table's order."""
    groups: dict[str, list[str]] = {}
    for name, setting in table.items():
        groups.setdefault(setting.group, []).append(name)
    return groups
