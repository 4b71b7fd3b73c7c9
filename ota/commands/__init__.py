"""The commands of edge-ota, one file each; the file is named after the command. `run` returns the exit status.

Each module has `HELP` (one line), `add_arguments(parser)`, and `run(arguments, settings)`. Heavy libraries are imported
by the commands that need them, so that `edge-ota status` starts at once.
"""

#: in the order of `edge-ota --help`
COMMANDS: tuple[str, ...] = ("publish", "run-trial")
