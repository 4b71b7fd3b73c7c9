"""`python -m edge_serve.config.server_docs > docs/settings.md`: the settings page, from the table in `server`."""

from __future__ import annotations

import sys

from edge_serve.config.server import ALIASES, SETTINGS, defaults
from edge_serve.config.settings import by_group, flag_of, variable_of

_HEAD = """\
# Settings

Generated from `edge_serve/config/server.py` by `python -m edge_serve.config.server_docs`; do not edit.

Names, syntax and defaults are Triton's: `--name=value` or `--name value`. What is given on the command line goes before
the environment variable, and that before the default. Booleans are `true`, `false`, `on`, `off`, `1` or `0`. In the
environment the values of a setting that may be given several times (*) are separated by `;`.

An unknown option ends the server, as in Triton. An unknown variable `EDGE_SERVE_...` is a warning in the log, with the
nearest name that is known. `edge-serve check-config` says whether a server would start with the settings as they are.

Two defaults differ from Triton's: `--http-address` and `--grpc-address` are the loopback address, so that a device
serves its own programs until it is told otherwise. The command `tritonserver` is the same program with Triton's
defaults: both addresses are `0.0.0.0`. The Debian package sets the addresses too ([what it opens](security.md)).
"""


def page() -> str:
    """docs/settings.md."""
    written = defaults()
    parts = [_HEAD]
    for group, names in by_group(SETTINGS).items():
        parts.append(f"\n## {group}\n\n| flag | values | default | meaning |\n|---|---|---|---|\n")
        parts += [_row(name, written[name]) for name in names]
    parts.append("\n## Other spellings\n\n| flag | the same as | |\n|---|---|---|\n")
    for flag, alias in ALIASES.items():
        target = f"{flag_of(alias.name)}={alias.form.format('<value>')}"
        parts.append(f"| `{flag}` | `{target}` | {'deprecated' if alias.deprecated else ''} |\n")
    return "".join(parts)


def _row(name: str, default: str) -> str:
    setting = SETTINGS[name]
    meaning = f"Accepted and ignored: {setting.ignored}." if setting.ignored else setting.help
    cells = [
        f"`{flag_of(name)}`{' *' if setting.many else ''}<br>`{variable_of(name)}`",
        f"`{setting.kind.metavar}`" if setting.kind.metavar else "",
        f"`{default}`" if default else "",
        meaning,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
