"""Environment variables that stop inference libraries from reporting to their makers.

ONNX Runtime's packages for Linux (1.29 and later) send events from the moment of the import, so its own
`disable_telemetry_events()` comes too late: the variable must be there before. docs/security.md tells the operator.
"""

from __future__ import annotations

from collections.abc import Mapping

#: the unit in systemd/ has the same
PRIVATE = {"ORT_DISABLE_TELEMETRY": "1"}


def private(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with those of `PRIVATE` added. A value that the operator has set stays, unless it is empty."""
    return {**variables, **{name: variables.get(name) or value for name, value in PRIVATE.items()}}
