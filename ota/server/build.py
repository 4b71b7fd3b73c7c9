"""Builds a TensorRT plan from an ONNX file with `edge-serve build`, in a systemd unit or in a child process.

The unit also finds the facts of the device (`doctor`).
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ota.decide.variant import is_build_option
from ota.errors import NoBuildUnit, NoSpace, NotHeld, ServerError, TrialFailed, UsageError
from ota.server import doctor
from ota.server.unit import ask_child, ask_unit, check_below, serve_one
from ota.strict_json import find_object

#: length of a plan's name in the directory of the unit
_KEY = 64
#: in errors of `edge-serve build` for which its disk, not the release, is the reason
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "MB of free disk")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A request to build one plan.

    Attributes:
        onnx: the ONNX file of an installed release.
        key: the name of the plan in the cache: 64 hexadecimal digits.
        options: further arguments of `edge-serve build`, out of the signed manifest.
        limit: seconds.
    """

    onnx: str
    key: str
    workspace_mb: int
    options: tuple[str, ...]
    limit: float


class UnitBuild:
    """Runs builds in a unit, or in a child process.

    Args:
        path: the socket of the unit for builds; "" = a child process.
        program: `edge-serve`, for the child process.
        place: where a child process writes plans.
    """

    def __init__(self, path: str, program: str, place: Path) -> None:
        self._path = path
        self._program = program
        self._place = place

    def run(self, request: BuildRequest) -> tuple[Path, float]:
        """Build a plan. Return its path and the seconds that it took. The caller copies the plan.

        Raises:
            TrialFailed: the build failed; the same file fails again on this device.
            NotHeld: it had no space. NoBuildUnit: its unit is not there.
            ServerError: the build could not be run, or took too long.
        """
        found = self._ask_unit(request) if self._path else build(self._program, request, self._place)
        if found.get("ok") is not True or not isinstance(found.get("plan"), str):
            text = f"the build of {Path(request.onnx).name} failed: {found.get('error') or 'it gave no reason'}"
            if found.get("reason") == NoSpace.reason:
                raise NotHeld(text)
            if found.get("reason") is not None:  # an error of the unit itself
                raise ServerError(text)
            raise TrialFailed(text)
        plan = Path(found["plan"])
        if (
            plan.name != f"{request.key}.plan" or "\0" in found["plan"]
        ):  # the agent may read more than a unit that read a foreign ONNX file
            text = f"the build of {Path(request.onnx).name} answered with the plan {found['plan']!r}"
            raise ServerError(f"{text}, expected {request.key}.plan: see the journal of edge-ota-build@.service")
        seconds = found.get("seconds")
        return plan, seconds if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf else 0.0

    def _ask_unit(self, request: BuildRequest) -> dict[str, Any]:
        try:
            return ask_unit(self._path, asdict(request), request.limit)
        except NotHeld as error:
            raise NoBuildUnit(error.message) from error


def build(program: str, request: BuildRequest, place: Path, caller: BinaryIO | None = None) -> dict[str, Any]:
    """Run `edge-serve build --json`. Return its document, with `plan`.

    Args:
        caller: as in `ask_child`.

    Raises:
        ServerError: it did not end in time.
    """
    place.mkdir(mode=0o750, parents=True, exist_ok=True)
    for old in (*place.glob("*.plan"), *place.glob("*.plan.meta.json")):  # the agent has copied the plan
        old.unlink()
    plan = place / f"{request.key}.plan"
    command = [
        program, "build", request.onnx, "--output", str(plan), "--cache", str(place / "cache"),
        "--timing-cache", str(place / "timing.cache"), "--workspace-mb", str(request.workspace_mb), "--json",
        *request.options,
    ]  # fmt: skip
    status, output, errors = ask_child(command, request.limit, caller)
    found = find_object(output)
    if found is None:
        found = {"error": errors.splitlines()[-1] if errors else f"it ended with {status}"}
    if status or not plan.is_file():
        text = str(found.get("error") or f"it ended with {status} and no plan")
        reason = {"reason": NoSpace.reason} if any(one in text for one in _FULL) else {}
        return {"ok": False, "error": text, **reason}
    return {"ok": True, "plan": str(plan), "seconds": found.get("seconds")}


def serve_build(releases: Path, program: str) -> int:
    """Serve one request for a plan or for facts as the unit for builds. Return the exit status.

    Args:
        releases: the only place whose ONNX files are built.
    """

    def answer(request: Mapping[str, Any], caller: BinaryIO) -> Mapping[str, Any]:
        if request == doctor.REQUEST:
            return {"ok": True, "facts": doctor.doctor_facts(program, caller=caller)}
        place = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
        if not place:
            raise UsageError("STATE_DIRECTORY is not set: this command is for edge-ota-build@.service")
        return build(program, _read(request, releases), Path(place), caller)

    return serve_one(answer)


def _read(found: Mapping[str, Any], releases: Path) -> BuildRequest:
    onnx = check_below(found.get("onnx"), releases)
    key, workspace, limit = found.get("key"), found.get("workspace_mb"), found.get("limit")
    options = found.get("options")
    if not isinstance(key, str) or len(key) != _KEY or not all(one in "0123456789abcdef" for one in key):
        raise UsageError(f"the request's key is {key!r}, expected {_KEY} hexadecimal digits")
    if not isinstance(workspace, int) or not isinstance(limit, (int, float)) or not 0 < limit <= 86_400:
        raise UsageError("the request lacks workspace_mb or a limit in seconds")
    if not isinstance(options, list) or not all(map(is_build_option, options)):
        raise UsageError(f"an option of the build is not known: {options!r}; expected precisions and shapes")
    return BuildRequest(str(onnx), key, workspace, tuple(options), float(limit))
