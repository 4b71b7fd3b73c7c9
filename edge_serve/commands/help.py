"""Help for the program as a whole: its commands, the most used options of the server, hints for mistyped commands."""

from __future__ import annotations

import os
import sys
import textwrap

from edge_serve import __version__
from edge_serve.config.settings.kinds import shown
from edge_serve.config.settings.server import SETTINGS, defaults
from edge_serve.config.settings.table import flag_of, nearest

#: exit status for a command line that cannot be used, as that of most programs
USAGE = 2
#: every command, in the order of `--help`
COMMANDS = {
    "serve": "serve the models of a directory; the word may be left out",
    "check": "load every model without serving it; say what is wrong, where",
    "build": "make TensorRT plans from ONNX on this device",
    "convert": "make a TensorRT model from ONNX, compared on real inputs",
    "init": "write the directory of a new model",
    "pack": "install backends for models of OpenVINO, PyTorch, and others",
    "status": "show how the running server is",
    "top": "the same, live",
    "check-config": "say whether the service would start with its settings",
    "doctor": "examine this machine: what is missing, and how to get it",
    "safe-mode": "show or load the models that were left out after crashes",
    "token": "add a client's token to a --token-file, and print it",
}
#: the settings that `--help` lists; `serve --help` lists them all
MOST_USED = (
    "model_repository", "model_control_mode", "load_model", "exit_on_error", "http_address", "http_port", "grpc_port",
    "metrics_port", "token_file", "log_verbose",
)  # fmt: skip
_WIDTH = 80
#: groups of settings whose help does not say which port or address is meant
_DOORS = {"HTTP": "HTTP", "GRPC": "gRPC", "Metrics": "metrics"}
#: where the explanation of an option begins
_COLUMN = 30


def overview() -> str:
    """Return the text of `edge-serve --help`."""
    values = defaults()
    lines = [
        "usage: edge-serve --model-repository DIR [option...]",
        "       edge-serve COMMAND [option...]",
        "",
        "Commands ('edge-serve COMMAND --help' explains one):",
        *(f"  {name:<14}{text}" for name, text in COMMANDS.items()),
        "",
        f"The most used of the {len(SETTINGS)} options of the server [default]:",
    ]
    for name in MOST_USED:
        setting = SETTINGS[name]
        head = f"  {flag_of(name)}" + (f" <{setting.kind.metavar}>" if setting.kind.metavar else "")
        text = setting.help.partition(". ")[0].rstrip(".") + (f" [{values[name]}]" if values[name] else "")
        if setting.group in _DOORS:
            text = f"{_DOORS[setting.group]}: {text[0].lower()}{text[1:]}"
        if len(head) >= _COLUMN:
            lines.append(head)
            head = ""
        wrapped = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False)
        lines += [f"{head:<{_COLUMN}}{wrapped[0]}", *(" " * _COLUMN + line for line in wrapped[1:])]
    return "\n".join([*lines, "", "All options: edge-serve serve --help", "Version: edge-serve --version"]) + "\n"


def version() -> str:
    """Return the line of `edge-serve --version`."""
    import platform  # only this needs it

    python = f"Python {platform.python_version()} ({sys.executable})"
    return f"edge-serve {__version__}, {python}, {platform.system()} {platform.release()} {platform.machine()}"


def unknown_command(word: str) -> str:
    """Return the error for a first argument that is neither a command nor an option."""
    if os.path.isdir(word):
        path = shown(word)
        return (
            f"'{path}' is a directory, expected a command or an option: 'edge-serve --model-repository {path}' serves "
            f"its models, 'edge-serve check {path}' checks them"
        )
    close = nearest(word, COMMANDS)
    hint = f"did you mean '{close}'?" if close else f"expected one of {', '.join(COMMANDS)}"
    return f"unknown command '{shown(word)}', {hint}"
