"""docs/ota_settings.md, from the table of the agent's settings."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from ota.settings import FILE, PREFIX, AgentSettings, SettingDoc

_HEAD = f"""\
# Settings of edge-ota

Each setting is a line `NAME=value` of `{FILE}`, a variable `{PREFIX}NAME` of the environment, or a flag
of every command of a device: `RATE_LIMIT` is `--rate-limit`. A flag wins over the environment, and that over the file.
`{PREFIX}CONFIG` or `--config` names another file. An unknown name is an error; `edge-ota boot` alone ignores it, with
a warning. `edge-ota publish` has flags only: `edge-ota publish SUBCOMMAND --help`.

| setting | value | default | what it is |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = []
    for one in fields(AgentSettings):
        doc = doc_of(one.name)
        value = doc.unit.lower() or _kind(one.default)
        rows.append(f"| `{one.name.upper()}` | {value} | {_shown(one.default)} | {doc.text} |")
    return _HEAD + "\n".join(rows) + "\n"


def doc_of(name: str) -> SettingDoc:
    """Return the help text of a setting."""
    hint = get_type_hints(AgentSettings, include_extras=True)[name]
    return next(value for value in hint.__metadata__ if isinstance(value, SettingDoc))


def _kind(default: object) -> str:
    return {bool: "true or false", int: "number", float: "number", str: "text"}.get(type(default), "path")


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if default not in ("", ()) else ""
