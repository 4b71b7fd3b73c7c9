"""The commands of edge-ota. `run` returns the exit status.

Each module has `HELP` (one line, or one for each of its commands), `add_arguments(parser)`, and `run(arguments,
settings)`. A run imports the module of its own command only, so that `edge-ota boot` starts at once.

    status     `status` and `history`
    check      `check` and `plan`
    apply      `apply`
    import_    `import`
    rollback   `rollback`
    pause      `pause` and `resume`
    retry      `retry`
    explain    `explain`
    verify     `verify`
    gc         `gc`
    boot       `boot`
    publish    `publish`
    system/    `system`, `run-plans`, and `verify-system` for the root side of updates
    units      `run-trial` and `run-build`, for the units of trials and builds
    device/    `identity`, and `run-check-device` for the device image
"""

from collections.abc import Mapping

#: how commands begin that systemd's units run, and no operator types
OF_UNITS = ("run-", "verify-system")
#: command -> module, in the order of `edge-ota --help`
COMMANDS: Mapping[str, str] = {
    "status": "status",
    "check": "check",
    "plan": "check",
    "apply": "apply",
    "import": "import_",
    "rollback": "rollback",
    "pause": "pause",
    "resume": "pause",
    "retry": "retry",
    "explain": "explain",
    "history": "status",
    "verify": "verify",
    "gc": "gc",
    "boot": "boot",
    "identity": "device.identity",
    "system": "system.operate",
    "publish": "publish",
    "run-trial": "units",
    "run-build": "units",
    "run-check-device": "device.check",
    "run-plans": "system.plans",
    "verify-system": "system.verify",
}
