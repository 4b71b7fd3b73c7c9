"""The facts of this device as `edge-serve doctor --json` finds them, in the unit for builds.

That unit sees the GPUs, which a plan's name and many variants depend on. The agent, which reads what came from outside,
has no access to devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

from ota.errors import ServerError
from ota.server.unit import ask_child, ask_unit
from ota.strict_json import find_object

#: the request for facts to the unit for builds
REQUEST = {"facts": True}
#: seconds for `edge-serve doctor`; each of its checks also has a limit
DOCTOR_SECONDS = 120.0


def device_facts(path: str, program: str, limit: float = DOCTOR_SECONDS) -> dict[str, str]:
    """Return the facts of this device.

    Args:
        path: the socket of the unit for builds; "" = a child process finds them.
        program: `edge-serve`, for the child process.
        limit: seconds.

    Raises:
        ServerError: doctor did not print them in time, or the unit cannot be used.
    """
    if not path:
        return doctor_facts(program, limit)
    found = ask_unit(path, REQUEST, limit)
    if found.get("ok") is not True:
        raise ServerError(f"the facts of this device are unknown: {found.get('error') or 'the unit gave no reason'}")
    return _facts(
        found, f"the unit behind {path} has no facts in its answer: see the journal of edge-ota-build@.service"
    )


def doctor_facts(program: str, limit: float = DOCTOR_SECONDS, caller: BinaryIO | None = None) -> dict[str, str]:
    """Return the facts of `edge-serve doctor --json`, which runs as a child.

    Args:
        caller: as in `ask_child`.

    Raises:
        ServerError: it did not print them.
    """
    status, output, errors = ask_child([program, "doctor", "--json"], limit, caller)
    reason = errors.splitlines()[-1] if errors else "no facts in what it printed"
    text = f"'{program} doctor --json' ended with {status}: {reason}; is edge-serve too old?"
    return _facts(find_object(output) or {}, text)


def _facts(document: Mapping[str, Any], text: str) -> dict[str, str]:
    facts = document.get("facts")
    if not isinstance(facts, Mapping):
        raise ServerError(text)
    return {str(fact): str(value) for fact, value in facts.items()}
