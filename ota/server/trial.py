"""Tests a release with `edge-serve check --json`: loads its models, runs golden tests, and checks budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ota.documents.names import name
from ota.errors import NotHeld, ServerError, TrialFailed, UsageError
from ota.server.unit import ask_child, ask_unit, check_below, serve_one
from ota.strict_json import find_object

_MOST_REASON = 900
#: exit status of `edge-serve check` for a setting of this device that is wrong
_WRONG_USE = 2


class UnitTrial:
    """Runs trials in a unit, or in a child process. Implements `agent.components.ReleaseTrial`.

    Args:
        path: the socket of the unit for trials; "" = a child process.
        program: `edge-serve`, for the child process.
    """

    def __init__(self, path: str, program: str) -> None:
        self._path = path
        self._program = program

    def run(self, repository: Path, models: Sequence[str], limit: float) -> None:
        """Load the models of a repository outside the server, and run their golden tests.

        Raises:
            TrialFailed: a model does not load, gives other outputs, or is over its budget; with the figures.
            NotHeld: the trial could not be held, for a reason of this device.
            ServerError: it could not be held, perhaps because of the release.
        """
        request = {"repository": str(repository), "models": list(models), "limit": limit}
        found = ask_unit(self._path, request, limit) if self._path else check(self._program, repository, models, limit)
        if "models" not in found:
            kind = NotHeld if found.get("reason") == NotHeld.reason else ServerError
            raise kind(f"the trial could not be held: {found.get('error')}")
        try:
            judge(found, models)
        except (TypeError, AttributeError) as error:
            raise ServerError(f"the trial could not be held: its result is malformed ({error})") from error


def check(
    program: str, repository: Path, models: Sequence[str], limit: float, caller: BinaryIO | None = None
) -> dict[str, Any]:
    """Run `edge-serve check --json`. Return its document.

    Args:
        caller: as in `ask_child`.

    Raises:
        NotHeld: it cannot read a setting of this device.
        ServerError: it did not end in time, or printed none.
    """
    chosen = [text for model in models for text in ("--model", model)]
    command = [program, "check", "--json", *chosen, str(repository)]
    status, output, errors = ask_child(command, limit, caller)
    found = find_object(output)
    if found is None or not isinstance(found.get("models"), list):
        reason = errors.splitlines()[-1] if errors else f"it printed {output[:80]!r}"
        kind = NotHeld if status == _WRONG_USE else ServerError
        raise kind(f"'{program} check' ended with {status} and no result: {reason}")
    return found


def judge(found: Mapping[str, Any], models: Sequence[str]) -> None:
    """Raise unless the document of `edge-serve check` has no failure for any of the models.

    Raises:
        TrialFailed: with what failed, of every model.
    """
    rows = {row.get("name"): row for row in found.get("models", []) if isinstance(row, dict)}
    failures = [str(found["error"])] if found.get("error") else []
    failures += [f"{model}: {reason}" for model in models if (reason := _reason(rows.get(model)))]
    if failures:
        text = "; ".join(failures)
        raise TrialFailed(text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]} ...")


def _reason(row: Mapping[str, Any] | None) -> str:
    """Return why a model failed its trial; "" = it passed."""
    if row is None:
        return "edge-serve did not check it"
    if row.get("ok") is True:
        return ""
    texts = [str(row.get("error") or "")]
    for member in ("golden", "asked"):
        texts += [str(text) for one in row.get(member) or [] for text in one.get("problems") or []]
    return "; ".join(filter(None, texts)) or "edge-serve check failed without a reason"


def serve_trial(root: Path, program: str) -> int:
    """Serve one request as the unit for trials. Return the exit status.

    Args:
        root: the only place whose repositories are tried.
    """

    def answer(request: Mapping[str, Any], caller: BinaryIO) -> Mapping[str, Any]:
        repository = check_below(request.get("repository"), root)
        models, limit = request.get("models"), request.get("limit")
        if not isinstance(models, list) or not models or not isinstance(limit, (int, float)) or not 0 < limit <= 86400:
            raise UsageError("the request lacks models or a limit in seconds")
        names = [name(one, "a model") for one in models]
        return check(program, repository, names, float(limit), caller)

    return serve_one(answer)
